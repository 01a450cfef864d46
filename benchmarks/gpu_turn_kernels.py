"""Which kernels a turn consists of, with and without drafts: counts and device time by name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpu_engine_promise import requests

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.options import Speculation

_SHOWN = 40


def turn_kernels(
    config: EngineConfig, cases: Sequence[tuple[int, str]] = ((1, "off"), (1, "fixed:2"), (16, "fixed:1"))
) -> dict[str, Any]:
    """One table a case: kernels of a turn by name, the dearest first."""
    from torch.profiler import ProfilerActivity, profile

    base = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
    seen, page = [], []
    for batch, policy in cases:
        llm = base.with_config(
            replace(base.config, speculation=Speculation.from_text(policy), asynchronous=True)
        )
        asked = [
            replace(r, params=replace(r.params, num_logprobs=0, max_tokens=90, temperature=0.0))
            for r in requests(batch, 150, 90)
        ]
        core = llm._core
        for is_profiled in (False, False, False, True):
            for request in asked:
                core.add(request)
            while core.has_unfinished and not core.step():
                pass
            for _ in range(6):
                core.step()
            first, started = core.scheduler.stats.num_steps, time.perf_counter()
            if not is_profiled:
                for _ in range(20):
                    core.step()
                wall_s = (time.perf_counter() - started) / 20
            else:
                with profile(activities=[ProfilerActivity.CUDA]) as trace:
                    for _ in range(20):
                        core.step()
                turns = core.scheduler.stats.num_steps - first
            for request in asked:
                core.abort(request.request_id)
        events = [e for e in trace.key_averages() if e.self_device_time_total > 0]
        events.sort(key=lambda e: -e.self_device_time_total)
        busy_us = sum(e.self_device_time_total for e in events) / turns
        count = sum(e.count for e in events) / turns
        name = f"batch {batch}, {policy}"
        seen.append(f"{name}: {wall_s * 1e3:.2f} ms a turn, {busy_us:.0f} us in {count:.0f} kernels")
        page += [f"| {name}, kernel | calls a turn | us a turn |", "|---|---|---|"]
        page += [
            f"| {e.key[:70]} | {e.count / turns:.1f} | {e.self_device_time_total / turns:.1f} |"
            for e in events[:_SHOWN]
        ]
        page.append("")
    return {"verdict": "measured", "seen": "; ".join(seen), "page": page}
