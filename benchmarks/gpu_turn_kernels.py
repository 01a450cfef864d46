"""Which kernels a turn consists of, with and without drafts: counts and device time by name.

The time of a turn is also given with all its work in one line, which says what branches bring, and that
between two turns, in which the device waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from gpu_engine_promise import requests
from gpu_turns import gap_of

from deepinfer.engine.api import EngineConfig, GenerateRequest
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.options import Speculation

_SHOWN = 40
_CASES = ((1, "off"), (1, "fixed:2"), (16, "fixed:1"), (64, "off"), (64, "fixed:2"))


def turn_kernels(config: EngineConfig, cases: Sequence[tuple[int, str]] = _CASES) -> dict[str, Any]:
    """One table a case: kernels of a turn by name, the dearest first."""
    from torch.profiler import ProfilerActivity, profile

    base = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
    seen, page = [], []
    for batch, policy in cases:
        named = replace(base.config, speculation=Speculation.from_text(policy), asynchronous=True)
        llm, in_line = base.with_config(named), base.with_config(named)
        asked = [
            replace(r, params=replace(r.params, num_logprobs=0, max_tokens=90, temperature=0.0))
            for r in requests(batch, 150, 90)
        ]
        ops: Any = in_line.ops
        ops.branches.most_rows = 0
        wall_s, in_line_s = (_turn_s(one._core, asked) for one in (llm, in_line))
        between_ms, _ = gap_of(llm._core, asked)
        _begin(llm._core, asked)
        first = llm._core.scheduler.stats.num_steps
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            for _ in range(20):
                llm._core.step()
        turns = llm._core.scheduler.stats.num_steps - first
        _end(llm._core, asked)
        events = [e for e in trace.key_averages() if e.self_device_time_total > 0]
        events.sort(key=lambda e: -e.self_device_time_total)
        busy_us = sum(e.self_device_time_total for e in events) / turns
        count = sum(e.count for e in events) / turns
        name = f"batch {batch}, {policy}"
        seen.append(
            f"{name}: {wall_s * 1e3:.2f} ms a turn, {between_ms:.2f} of it between turns, "
            f"{in_line_s * 1e3:.2f} in one line, "
            f"{busy_us:.0f} us in {count:.0f} kernels"
        )
        page += [f"| {name}, kernel | calls a turn | us a turn |", "|---|---|---|"]
        page += [
            f"| {e.key[:70]} | {e.count / turns:.1f} | {e.self_device_time_total / turns:.1f} |"
            for e in events[:_SHOWN]
        ]
        page.append("")
    return {"verdict": "measured", "seen": "; ".join(seen), "page": page}


def _begin(core: EngineCore, asked: Sequence[GenerateRequest]) -> None:
    """Read the prompts, and come to turns behind turns."""
    for request in asked:
        core.add(request)
    while core.has_unfinished and not core.step():
        pass
    for _ in range(6):
        core.step()


def _end(core: EngineCore, asked: Sequence[GenerateRequest]) -> None:
    for request in asked:
        core.abort(request.request_id)


def _turn_s(core: EngineCore, asked: Sequence[GenerateRequest], rounds: int = 6, steps: int = 25) -> float:
    """Seconds of a turn: the median of rounds, without the first two, which record."""
    taken = []
    for _ in range(rounds):
        _begin(core, asked)
        started = time.perf_counter()
        for _ in range(steps):
            core.step()
        taken.append((time.perf_counter() - started) / steps)
        _end(core, asked)
    return median(taken[2:])
