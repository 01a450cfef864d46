"""Random traffic: draws a trace, plays it, runs each of its requests alone, and compares the two as bytes."""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from deepinfer.engine.api import Float32Array, GenerateRequest, PrefillMode, SamplingParams, TokenRecord
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.core import CoreConfig, EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule, prefill_rule
from deepinfer.engine.scheduler import Limits
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.drafter import DraftPoint, ModelDrafter
from deepinfer.engine.speculation.drafts import Drafts
from deepinfer.engine.speculation.options import Speculation, SpeculationPolicy

Digests = dict[tuple[int, int, int], bytes]
"""(seed, sample, position) -> digest of the whole row of logits that the token there was drawn from."""


def watched(core: EngineCore) -> Digests:
    """Digests of all logits rows that tokens are given out from, as the core goes on."""
    rows: Digests = {}

    def watch(sequence: Sequence, position: int, line: Float32Array) -> None:
        key = sequence.seed, sequence.sample_index, position
        assert key not in rows, "two tokens were given out for one position"
        rows[key] = hashlib.sha256(line.tobytes()).digest()

    core.observe = watch
    return rows


class HalfKnown(ModelDrafter):
    """The model's drafts, replaced by what really comes next as far as a die says so.

    The model of the golden checkpoint guesses nothing; this one is as often right as wrong, at every
    place of a block.
    """

    drafts_in_turn = False  # the die is the host's

    def __init__(self, llm: LLM, rule: PrefillRule) -> None:
        super().__init__(llm._draft, rule)
        self.block_size = llm.model_config.dspark_block_size
        self.truth: dict[tuple[str, int], list[int]] = {}

    def propose(self, points: Items[DraftPoint], caches: Caches, num_drafts: int) -> list[Drafts]:
        drafts = super().propose(points, caches, num_drafts)
        for point, draft in zip(points, drafts, strict=True):
            sequence = point.sequence
            first = point.position + 1 - sequence.prompt_length
            ahead = self.truth.get(sequence.key, [])[first : first + draft.size]
            die = np.random.default_rng([sequence.seed & 0xFFFF, point.position])
            right = int(die.integers(0, self.block_size + 1))
            draft.tokens[: min(right, len(ahead))] = ahead[:right]
            draft.confidences[:] = die.random(draft.size)
        return drafts


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
    core = replace(core, **random_mode(seed))
    aborts = {int(draw.integers(1, 30)): f"r{int(draw.integers(0, len(requests)))}"} if seed % 3 == 0 else {}
    return Trace(mode, core, tuple(requests), tuple(draw.integers(0, 12, len(requests)).tolist()), aborts)


def shortened(trace: Trace) -> Trace:
    """The same traffic with shorter prompts and outputs, for many requests in little time."""
    requests = tuple(
        replace(
            request,
            token_ids=request.token_ids[:140],
            params=replace(request.params, max_tokens=min(request.params.max_tokens, 14)),
        )
        for request in trace.requests
    )
    blocks = max(-(-(len(r.token_ids) + r.params.max_tokens) // 128) for r in requests)
    return replace(
        trace, requests=requests, core=replace(trace.core, num_blocks=blocks + trace.core.num_blocks % 4)
    )


class Mode(TypedDict):
    """How a core goes about its work; no bit may depend on it."""

    speculation: Speculation
    asynchronous: bool


def random_mode(seed: int) -> Mode:
    draw = np.random.default_rng([seed, 7])
    policy = SpeculationPolicy(draw.choice(list(SpeculationPolicy)))
    count = int(draw.integers(1, 6))
    return Mode(
        speculation=Speculation(policy=policy, num_drafts=count), asynchronous=bool(draw.random() < 0.5)
    )


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


def alone(
    llm: LLM, mode: PrefillMode, request: GenerateRequest, sample: int
) -> tuple[list[TokenRecord], Digests]:
    """The same sample in an engine that never held anything else, in one chunk, one token a step."""
    config = CoreConfig(
        limits=Limits(max_rows=1024, max_chunk=None, max_sequences=request.params.n),
        num_blocks=16 * request.params.n,
        prefix_caching=False,
    )
    core = EngineCore(llm._model, prefill_rule(llm.model_config, mode, None), config)
    digests = watched(core)
    assert core.add(request) is None
    records = []
    while core.has_unfinished:
        records += [record for record in core.step() if record.sample_index == sample]
    return records, digests


Pair = tuple[TokenRecord, TokenRecord, bytes, bytes]
"""A token in the crowd and alone, with the digests of the logits that they were drawn from."""


def pairs(llm: LLM, trace: Trace, core: EngineCore) -> Iterator[Pair]:
    """Play a trace and run its requests alone; every token that an abort did not take, twice."""
    wanted = {
        (request.request_id, sample): alone(llm, trace.mode, request, sample)
        for request in trace.requests
        for sample in range(request.params.n)
    }
    if core.speculation is not None and isinstance(core.speculation.drafter, HalfKnown):
        core.speculation.drafter.truth = {
            key: [record.token_id for record in records if record.token_id is not None]
            for key, (records, _) in wanted.items()
        }
    crowd = watched(core)
    seen = play(core, trace)
    assert core.pool.num_used == 0, "a block is still held"
    assert len(core.scheduler.free_slots) == trace.core.limits.max_sequences
    for request in trace.requests:
        for sample in range(request.params.n):
            got, (want, single) = seen[request.request_id, sample], wanted[request.request_id, sample]
            assert [bool(r.finish_reason) for r in got] == [False] * (len(got) - 1) + [True]
            if got[-1].finish_reason == "abort":
                got = got[:-1]
            else:
                assert len(got) == len(want)
            for mine, theirs in zip(got, want, strict=False):
                assert request.params.seed is not None
                key = request.params.seed, sample, mine.position
                yield mine, theirs, crowd[key], single[key]


def check(llm: LLM, trace: Trace, core: EngineCore) -> int:
    """Compare a trace with its requests alone; returns the number of logits rows compared."""
    compared = 0
    for mine, theirs, crowd, single in pairs(llm, trace, core):
        assert packed(mine) == packed(theirs), (mine, theirs)
        assert crowd == single, f"{mine.request_id}, position {mine.position}: the logits rows differ"
        compared += 1
    return compared


def core_of(llm: LLM, trace: Trace, model: Transformer | None = None, own_drafts: bool = False) -> EngineCore:
    rule = prefill_rule(llm.model_config, trace.mode, None)
    drafter = ModelDrafter(llm._draft, rule) if own_drafts else HalfKnown(llm, rule)
    return EngineCore(model or llm._model, rule, trace.core, drafter)
