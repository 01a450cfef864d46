"""Random traffic: draws a trace, plays it, runs each of its requests alone, and compares the two as bytes."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from deepinfer.engine import core as core_module
from deepinfer.engine.api import GenerateRequest, PrefillMode, SamplingParams, TokenRecord
from deepinfer.engine.core import CoreConfig, EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.prefill import prefill_rule
from deepinfer.engine.sampler import Sampled
from deepinfer.engine.scheduler import Limits
from deepinfer.kernels.interface import Ops

Digests = dict[tuple[int, int, int], bytes]
"""(seed, sample, position) -> digest of the whole row of logits that the token there was drawn from."""


@contextmanager
def watched() -> Iterator[Digests]:
    """Digests of all logits rows that are sampled from, as they leave the head."""
    rows: Digests = {}
    sound = core_module.sample_rows

    def watch(
        ops: Ops,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        positions: Sequence[int],
        samples: Sequence[int],
    ) -> Sampled:
        for line, key in zip(logits, zip(seeds, samples, positions, strict=True), strict=True):
            assert key not in rows, "two rows were sampled for one position"
            rows[key] = hashlib.sha256(line.contiguous().cpu().numpy().tobytes()).digest()
        return sound(ops, logits, params, seeds, positions, samples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "sample_rows", watch)
        yield rows


@dataclass(frozen=True)
class Trace:
    """One random workload."""

    mode: PrefillMode
    core: CoreConfig
    requests: tuple[GenerateRequest, ...]
    arrivals: tuple[int, ...]
    aborts: dict[int, str]


def random_trace(seed: int) -> Trace:
    draw = np.random.default_rng(seed)
    mode = [PrefillMode.OFF, PrefillMode.OFF, PrefillMode.MASK, PrefillMode.COMPACT][seed % 4]
    prefix = draw.integers(4, 500, 400).tolist()
    requests = []
    for i in range(int(draw.integers(4, 10))):
        length = int(draw.integers(1, 600)) if draw.random() < 0.3 else int(draw.integers(1, 200))
        shared = int(draw.choice([0, 0, 127, 128, 129, 256, 300]))
        ids = (prefix[:shared] + draw.integers(4, 500, length).tolist())[:600]
        params = SamplingParams(
            temperature=float(draw.choice([0.0, 0.7, 1.0])),
            top_p=float(draw.choice([1.0, 0.8])),
            top_k=int(draw.choice([0, 20])),
            seed=int(draw.integers(0, 2**63)),
            n=int(draw.choice([1, 1, 1, 2])),
            max_tokens=int(draw.integers(1, 40)),
            num_logprobs=int(draw.choice([0, 3])),
            ignore_eos=True,
        )
        requests.append(GenerateRequest(request_id=f"r{i}", token_ids=ids, params=params))
    largest = max(-(-(len(r.token_ids) + r.params.max_tokens) // 128) for r in requests)
    rows = int(draw.choice([8, 33, 150, 700]))
    core = CoreConfig(
        limits=Limits(
            max_rows=rows,
            max_chunk=None if draw.random() < 0.5 else int(draw.integers(1, 140)),
            max_sequences=int(draw.integers(1, min(8, rows) + 1)),
        ),
        num_blocks=largest + int(draw.integers(0, 8)),
        prefix_caching=bool(draw.random() < 0.8),
        max_snapshots=int(draw.choice([2, 1024])),
    )
    aborts = {int(draw.integers(1, 30)): f"r{int(draw.integers(0, len(requests)))}"} if seed % 3 == 0 else {}
    return Trace(mode, core, tuple(requests), tuple(draw.integers(0, 12, len(requests)).tolist()), aborts)


def packed(record: TokenRecord) -> bytes:
    """Everything a token record says, to the bit."""
    floats = [record.raw_logprob, record.processed_logprob, *record.top_logprobs]
    ids = [-1 if record.token_id is None else record.token_id, record.position, *record.top_ids]
    return struct.pack(f"<{len(floats)}d{len(ids)}q", *floats, *ids)


def play(core: EngineCore, trace: Trace) -> dict[tuple[str, int], list[TokenRecord]]:
    seen: dict[tuple[str, int], list[TokenRecord]] = defaultdict(list)
    clock = 0
    while clock <= max(trace.arrivals) or core.has_unfinished:
        for request, arrival in zip(trace.requests, trace.arrivals, strict=True):
            if arrival == clock:
                assert core.add(request) is None
        records = core.abort(trace.aborts[clock]) if clock in trace.aborts else []
        for record in [*records, *core.step()]:
            seen[record.request_id, record.sample_index].append(record)
        clock += 1
        assert clock < 5000, "the engine does not finish"
    return seen


def alone(llm: LLM, mode: PrefillMode, request: GenerateRequest, sample: int) -> list[TokenRecord]:
    """The same sample in an engine that never held anything else, in one chunk."""
    config = CoreConfig(
        limits=Limits(max_rows=1024, max_chunk=None, max_sequences=request.params.n),
        num_blocks=16 * request.params.n,
        prefix_caching=False,
    )
    core = EngineCore(llm._model, prefill_rule(llm.model_config, mode, None), config)
    assert core.add(request) is None
    records = []
    while core.has_unfinished:
        records += [record for record in core.step() if record.sample_index == sample]
    return records


def check(llm: LLM, trace: Trace, core: EngineCore) -> int:
    """Compare a trace with its requests alone; returns the number of logits rows compared."""
    with watched() as crowd:
        seen, compared = play(core, trace), 0
    assert core.pool.num_used == 0, "a block is still held"
    assert len(core.scheduler.free_slots) == trace.core.limits.max_sequences
    for request in trace.requests:
        for sample in range(request.params.n):
            with watched() as single:
                got, want = seen[request.request_id, sample], alone(llm, trace.mode, request, sample)
            assert [bool(r.finish_reason) for r in got] == [False] * (len(got) - 1) + [True]
            if got[-1].finish_reason == "abort":
                got = got[:-1]
            else:
                assert len(got) == len(want)
            for mine, theirs in zip(got, want, strict=False):
                assert packed(mine) == packed(theirs), (request.request_id, sample, mine, theirs)
                assert request.params.seed is not None
                key = request.params.seed, sample, mine.position
                assert crowd[key] == single[key], f"{key}: the logits rows differ"
                compared += 1
    return compared


def core_of(llm: LLM, trace: Trace) -> EngineCore:
    return EngineCore(llm._model, prefill_rule(llm.model_config, trace.mode, None), trace.core)
