"""Random traffic against each request run alone in a fresh engine: every token and logits row as bytes.

A trace draws arrivals, prompt lengths, shared prefixes, sampling parameters, chunk and batch limits, cache
sizes that force eviction and preemption, and aborts. The engine under test keeps its caches from trace to
trace of one model.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from trace_play import check, core_of, random_trace, shortened

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.llm import LLM

NUM_TRACES = int(os.environ.get("DEEPINFER_TEST_TRACES", "6"))
NUM_LONG_TRACES = 60


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


@pytest.mark.parametrize("seed", range(NUM_TRACES))
def test_random_traffic_moves_no_bit(llm: LLM, seed: int) -> None:
    trace = random_trace(seed)
    assert check(llm, trace, core_of(llm, trace)) > 0


@pytest.mark.slow
def test_long_random_traffic_moves_no_bit(llm: LLM) -> None:
    traces = [random_trace(seed) for seed in range(1000, 1000 + NUM_LONG_TRACES)]
    assert sum(check(llm, trace, core_of(llm, trace)) for trace in traces) >= 5500


@pytest.mark.slow
def test_two_thousand_requests_move_no_bit(llm: LLM) -> None:
    """Speculation of all kinds, planned ahead or not, chunked, preempted, with prefix hits."""
    requests, accepted, wasted, ahead, preemptions, seed = 0, 0, 0, 0, 0, 5000
    while requests < 2000:
        trace = random_trace(seed)
        trace = trace if seed % 4 == 0 else shortened(trace)
        core = core_of(llm, trace)
        check(llm, trace, core)
        requests, seed = requests + len(trace.requests), seed + 1
        ahead += core.scheduler.stats.num_ahead
        preemptions += core.scheduler.stats.num_preemptions
        if core.speculation is not None:
            accepted += int(core.speculation.stats.num_accepted.sum())
            wasted += core.speculation.stats.rows_wasted
    assert min(accepted, wasted, ahead) > 1000
    assert preemptions > 0


def test_traces_reach_hits_evictions_and_preemptions(llm: LLM) -> None:
    """The axes are really exercised, or the comparison above would say little."""
    hits = evictions = preemptions = 0
    for seed in (1, 4, 5, 9):
        trace = random_trace(seed)
        tight = replace(trace.core, num_blocks=max(5, trace.core.num_blocks // 2), prefix_caching=True)
        fitting = tuple(r for r in trace.requests if len(r.token_ids) + 40 <= tight.num_blocks * 128)
        arrivals = trace.arrivals[: len(fitting)]
        trace = replace(trace, core=tight, requests=fitting, arrivals=arrivals, aborts={})
        core = core_of(llm, trace)
        check(llm, trace, core)
        hits += core.tree.stats.hit_tokens
        evictions += core.tree.stats.evictions
        preemptions += core.scheduler.stats.num_preemptions
    assert hits > 0
    assert evictions > 0
    assert preemptions > 0
