"""Twenty minutes of random traffic with 64 requests in flight: memory stays flat, every block comes back."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from pathlib import Path

import numpy as np
import pytest

from deepinfer.engine.api import EngineConfig, GenerateRequest, PrefillMode, SamplingParams
from deepinfer.engine.core import CoreConfig, EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.prefill import prefill_rule
from deepinfer.engine.scheduler import Limits

MINUTES = float(os.environ.get("DEEPINFER_TEST_SOAK_MINUTES", "20"))
IN_FLIGHT, NUM_BLOCKS, GROWTH_MIB = 64, 100, 8
"""Fewer blocks than 64 requests want, so that preemption and eviction go on all the time."""


def anonymous_mib() -> float:
    """Memory of the process itself; pages of the mapped checkpoint are the page cache's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def in_use_mib() -> float:
    """The same, once what is free has gone back to the system: the allocator keeps temporaries for reuse."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return anonymous_mib()


def request(draw: np.random.Generator, prefix: list[int], number: int, vocabulary: int) -> GenerateRequest:
    shared = int(draw.choice([0, 0, 128, 257, 400]))
    own = draw.integers(4, vocabulary - 8, int(draw.integers(1, 200))).tolist()
    params = SamplingParams(
        temperature=float(draw.choice([0.0, 1.0])),
        seed=int(draw.integers(0, 2**63)),
        max_tokens=int(draw.integers(1, 120)),
    )
    return GenerateRequest(request_id=f"r{number}", token_ids=prefix[:shared] + own, params=params)


@pytest.mark.slow
def test_soak() -> None:
    llm = LLM(None, EngineConfig(num_threads=2))
    config = CoreConfig(
        limits=Limits(max_rows=512, max_chunk=96, max_sequences=IN_FLIGHT),
        num_blocks=NUM_BLOCKS,
        max_snapshots=64,
    )
    core = EngineCore(llm._model, prefill_rule(llm.model_config, PrefillMode.OFF, None), config)
    draw = np.random.default_rng(3)
    prefix = draw.integers(4, 4000, 400).tolist()
    vocabulary, live, added, tokens, aborts = llm.model_config.vocab_size, set[str](), 0, 0, 0
    started, warm_mib, peak_mib = time.monotonic(), 0.0, 0.0
    while time.monotonic() - started < 60 * MINUTES:
        while len(live) < IN_FLIGHT:
            new = request(draw, prefix, added, vocabulary)
            assert core.add(new) is None
            live.add(new.request_id)
            added += 1
        records = core.step()
        if live and draw.random() < 0.01:
            victim = sorted(live)[int(draw.integers(len(live)))]
            records = [*records, *core.abort(victim)]
            aborts += 1
        tokens += len(records)
        live -= {record.request_id for record in records if record.finish_reason}
        if warm_mib == 0.0 and time.monotonic() - started > 6 * MINUTES:  # a tenth of the time
            warm_mib = in_use_mib()
        if core.scheduler.stats.num_steps % 200 == 0:
            peak_mib = max(peak_mib, anonymous_mib())
    while core.has_unfinished:
        core.step()
    end_mib = in_use_mib()
    stats = core.prefixes.tree.stats
    print(
        f"soak: {MINUTES:g} min, {added} requests, {aborts} aborts, {tokens} tokens, "
        f"{core.scheduler.stats.num_preemptions} preemptions, {stats.evictions} evictions, "
        f"{stats.hit_tokens} hit tokens; {warm_mib:.1f} MiB in use after a tenth of it, {end_mib:.1f} at the "
        f"end, {peak_mib:.0f} with temporaries at most; {core.pool.num_used} blocks held"
    )
    assert core.pool.num_used == 0
    assert len(core.scheduler.free_slots) == IN_FLIGHT
    assert core.scheduler.stats.num_preemptions > 0
    assert stats.evictions > 0
    assert end_mib < warm_mib + GROWTH_MIB
