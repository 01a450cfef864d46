"""Random traffic against each request run alone in a fresh engine: every token and logits row as bytes.

A trace draws arrivals, prompt lengths, shared prefixes, sampling parameters, chunk and batch limits, cache
sizes that force eviction and preemption, and aborts. The engine under test keeps its caches from trace to
trace of one model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from soak_play import Tally, soaked
from trace_play import check, core_of, random_trace

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.bundled import bundled_model_dir
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
@pytest.mark.parametrize("piece", range(10))
def test_two_thousand_requests_move_no_bit(llm: LLM, piece: int) -> None:
    """Speculation of all kinds, planned ahead or not, chunked, preempted, with prefix hits, all ends.

    ``benchmarks/soak_speculation.py`` plays the same traces on all cores.
    """
    total, seed = Tally(), 5000 + 100 * piece
    while total.requests < 200:
        total.add(soaked(llm, seed))
        seed += 1
    assert total.failures == []
    assert total.differing_records == total.differing_logits_rows == 0
    assert min(total.accepted_drafts, total.rejected_drafts, total.steps_planned_ahead) > 50
    assert min(total.aborted, total.stopped) > 0


@pytest.mark.slow
def test_recorded_traffic_with_own_drafts_moves_no_bit() -> None:
    """Crowds in recordings and turns, each request alone in neither; what a device run plays, on a CPU."""
    bundled, total = LLM(bundled_model_dir(), EngineConfig(num_threads=2)), Tally()
    for seed in range(5001, 5013):
        total.add(soaked(bundled, seed, recorded=True, own_drafts=True))
    assert total.failures == []
    assert total.differing_records == total.differing_logits_rows == 0
    assert min(total.recordings, total.accepted_drafts, total.rejected_drafts) > 20


def test_a_soaked_trace_counts_what_differs(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long comparison writes down what differs: here every draft is accepted."""
    found = soaked(llm, 5010)
    assert found.failures == []
    assert found.rows_compared > 0
    assert found.differing_records == found.differing_logits_rows == 0
    monkeypatch.setattr("deepinfer.engine.drawn_rows.emitted_rows", _all_rows)
    found = soaked(llm, 5010)
    assert found.failures or found.differing_records > 0


def _all_rows(sampled: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[range]:
    """Accepts whatever was drafted."""
    ends = accumulate(len(mine) + 1 for mine in drafts)
    return [range(end - len(mine) - 1, end) for end, mine in zip(ends, drafts, strict=True)]


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
        hits += core.prefixes.tree.stats.hit_tokens
        evictions += core.prefixes.tree.stats.evictions
        preemptions += core.scheduler.stats.num_preemptions
    assert hits > 0
    assert evictions > 0
    assert preemptions > 0
