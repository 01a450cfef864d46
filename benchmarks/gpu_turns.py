"""Turns on the device: bits of every policy against eager steps, speed of speculation, host time."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from gpu_engine_promise import requests
from gpu_speculation import decoding, said

from deepinfer.engine.api import EngineConfig, GenerateRequest
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.drafter import KnownContinuation
from deepinfer.engine.speculation.options import Speculation


def same_bytes(config: EngineConfig, is_long: bool) -> dict[str, Any]:
    """Every policy, synchronous and not, in turns: the bytes of eager steps without drafts."""
    base = LLM(None, replace(config, recorded_steps=False, prefix_caching=False))
    # alternatives keep turns from following each other unseen, so asynchronous runs ask for none
    asked = {
        False: requests(12, 150, 48),
        True: [replace(r, params=replace(r.params, num_logprobs=0)) for r in requests(12, 150, 48)],
    }
    wanted = {asynchronous: said(base, given)[0] for asynchronous, given in asked.items()}
    _, tokens = said(base, asked[True])
    seen, wrong = [], []
    for policy in ("off", "fixed", "fixed:2", "confidence", "known"):
        for asynchronous in (False, True) if is_long else (True,):
            named = Speculation.from_text("fixed" if policy == "known" else policy)
            variant = replace(config, speculation=named, asynchronous=asynchronous, recorded_steps=True)
            llm = base.with_config(replace(variant, prefix_caching=asynchronous))
            if policy == "known":
                llm = llm.with_drafter(KnownContinuation(tokens))
            given = asked[asynchronous]
            rounds = [said(llm, given)[0] == wanted[asynchronous] for _ in range(2)]
            name = f"{policy}{', asynchronous' * asynchronous}"
            stats = llm._core.scheduler.stats
            seen.append(
                f"{name}: {llm._core.launcher.num_recorded} graphs, {stats.num_unseen} of {stats.num_steps} "
                "steps unseen"
            )
            wrong += [] if all(rounds) else [name]
    text = f"12 sequences of 48 tokens, twice: {', '.join(seen)}; unlike eager: {wrong or 'none'}"
    return {"verdict": "DIFFER" if wrong else "equal", "seen": text}


def gaps(config: EngineConfig, batch: int = 64, steps: int = 40) -> dict[str, Any]:
    """Time between two turns in which the device has nothing to do, from events around each of them."""
    seen, page = [], ["| batch 64 | ms a step | between steps, ms | share |", "|---|---|---|---|"]
    for name, asynchronous in (("synchronous", False), ("asynchronous", True)):
        changed = replace(config, asynchronous=asynchronous, prefix_caching=False, max_batch_tokens=8192)
        asked = [
            replace(r, params=replace(r.params, num_logprobs=0, max_tokens=steps))
            for r in requests(batch, 160, steps)
        ]
        between, whole = gap_of(LLM(None, changed)._core, asked)
        seen.append(f"{name} {whole:.2f} ms a step, {between:.2f} ms between ({between / whole:.1%})")
        page.append(f"| {name} | {whole:.2f} | {between:.3f} | {between / whole:.1%} |")
    return {"verdict": "measured", "seen": "; ".join(seen), "page": page}


def gap_of(core: EngineCore, asked: Sequence[GenerateRequest]) -> tuple[float, float]:
    """Medians in milliseconds: from the end of a turn to the start of the next, and between starts."""
    for _ in range(2):
        decoding(core, asked)
    turns = core.launcher.turns
    assert turns is not None
    # made before: an event takes the host as long as a tenth of a turn
    ready = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(400)]
    for pair in ready:
        for event in pair:
            event.record()
    marks: list[tuple[Any, Any]] = []
    sound = turns.recordings.play

    def play(*given: Any) -> Any:
        pair = ready.pop()
        pair[0].record()
        found = sound(*given)
        pair[1].record()
        marks.append(pair)
        return found

    object.__setattr__(turns.recordings, "play", play)
    decoding(core, asked)
    torch.cuda.synchronize()
    pairs = list(pairwise(marks[4:-1]))
    between = median(one[1].elapsed_time(other[0]) for one, other in pairs)
    return between, median(one[0].elapsed_time(other[0]) for one, other in pairs)


def scoring_kernels(configs: dict[str, EngineConfig]) -> dict[str, Any]:
    """Which kernels a pass of scoring spends the device on."""
    from gpu_engine_speed import scoring_speed
    from torch.profiler import ProfilerActivity, profile

    page, seen = [], []
    for name, config in configs.items():
        llm = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
        scoring_speed(llm, 1)
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            speed = scoring_speed(llm, 1)
        events = sorted(trace.key_averages(), key=lambda e: -e.self_device_time_total)
        busy = sum(event.self_device_time_total for event in events) / 2e3
        seen.append(f"{name} {speed:.0f} tokens a second, the device works {busy:.0f} ms a pass")
        page += [f"| {name}, kernel | calls | ms a pass |", "|---|---|---|"]
        page += [
            f"| {e.key[:60]} | {e.count / 2:.0f} | {e.self_device_time_total / 2e3:.2f} |"
            for e in events[:14]
        ]
        page.append("")
    return {"verdict": "measured", "seen": "; ".join(seen), "page": page}


def host_profile(config: EngineConfig, batch: int = 64) -> dict[str, Any]:
    """Where the host spends a decode step: cProfile over some steps, by own time."""
    llm = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
    for _ in range(2):
        decoding(llm._core, requests(batch, 128 + batch, 30))
    core = llm._core
    for request in requests(batch, 128 + batch, 60):
        core.add(replace(request, params=replace(request.params, num_logprobs=0)))
    for _ in range(4):
        core.step()
    profile, steps = cProfile.Profile(), 30
    started = time.perf_counter()
    for _ in range(10):
        core.step()
    plain = (time.perf_counter() - started) / 10
    profile.enable()
    for _ in range(steps):
        core.step()
    profile.disable()
    out = io.StringIO()
    stats = pstats.Stats(profile, stream=out)
    stats.sort_stats("tottime").print_stats(28)
    for i in range(batch):
        core.abort(f"r{i}")
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    return {
        "verdict": "measured",
        "seen": f"batch {batch}: {plain * 1e3:.2f} ms a step on the host",
        "page": ["```", f"batch {batch}, {steps} steps", *lines, "```"],
    }
