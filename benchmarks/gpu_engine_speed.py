"""How fast the engine is on the device: scoring and decoding, recorded or not, and how idle the device is."""

from __future__ import annotations

import time
import traceback
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from gpu_engine_promise import prompts

from deepinfer.engine.api import EngineConfig, GenerateRequest, SamplingParams, ScoreRequest
from deepinfer.engine.llm import LLM

BATCHES = (1, 8, 64)
_PROMPT, _STEPS, _CONTEXT, _SEQUENCES = 128, 48, 1024, 16


def scoring_speed(llm: LLM, passes: int = 3) -> float:
    """Tokens a second, the best of some passes after a warm-up."""
    asked = [
        ScoreRequest(request_id=str(i), token_ids=ids) for i, ids in enumerate(prompts(_SEQUENCES, _CONTEXT))
    ]
    times = []
    for _ in range(passes + 1):
        started = time.perf_counter()
        llm.score(asked)
        times.append(time.perf_counter() - started)
    return _SEQUENCES * _CONTEXT / min(times[1:])


def step_times(llm: LLM, batch: int) -> list[float]:
    """Seconds of decode steps at one batch size, once shapes are compiled and recorded."""
    core = llm._core
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=_STEPS, ignore_eos=True)
    times: list[float] = []
    for number in range(2):
        for i, ids in enumerate(prompts(batch, _PROMPT, seed=number)):
            core.add(GenerateRequest(request_id=f"{number}.{i}", token_ids=ids, params=params))
        while core.has_unfinished:
            started = time.perf_counter()
            decoded = len(core.step())
            if number and decoded == batch:
                times.append(time.perf_counter() - started)
    return times


def speeds(variants: dict[str, EngineConfig]) -> dict[str, Any]:
    """Scoring and decoding of every variant; ratios are within this run."""
    figures: dict[str, dict[str, float]] = {}
    errors: dict[str, str] = {}
    for name, config in variants.items():
        try:
            config = replace(config, prefix_caching=False, max_batch_tokens=8192, num_cache_blocks=512)
            llm = LLM(None, config)
            figures[name] = {"scoring": scoring_speed(llm)}
            for batch in BATCHES:
                figures[name][f"decode {batch}"] = batch / median(step_times(llm, batch))
        except Exception as error:  # the other variants still count
            errors[name] = traceback.format_exc()
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    works = ["scoring", *(f"decode {batch}" for batch in BATCHES)]
    page = [f"| tokens a second | {' | '.join(works)} |", "|---|" + "---|" * len(works)]
    for name, found in figures.items():
        columns = [f"{found[work]:.0f}" if work in found else "" for work in works]
        page.append(f"| {name} | {' | '.join(columns)} |")
    seen = "; ".join(
        f"{name}: " + ", ".join(f"{work} {value:.0f}" for work, value in found.items())
        for name, found in figures.items()
    )
    if {"fast", "library"} <= figures.keys():
        shares = {work: figures["fast"][work] / value for work, value in figures["library"].items()}
        seen += "; fast / library: " + ", ".join(f"{work} {share:.2f}" for work, share in shares.items())
    verdict = "ERROR" if errors else "measured"
    return {"verdict": verdict, "seen": seen, "figures": figures, "page": page, "errors": errors}


def idle_share(config: EngineConfig, batch: int = 64) -> dict[str, Any]:
    """How much of a decode step the device computes, from torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    llm = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
    step_times(llm, batch)
    core = llm._core
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)
    for i, ids in enumerate(prompts(batch, _PROMPT)):
        core.add(GenerateRequest(request_id=f"p{i}", token_ids=ids, params=params))
    for _ in range(4):
        core.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        started, steps = time.perf_counter(), 0
        while core.has_unfinished and steps < 12:
            core.step()
            steps += 1
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
    for i in range(batch):
        core.abort(f"p{i}")
    kernels = sorted(trace.key_averages(), key=lambda e: -e.self_device_time_total)
    busy = sum(event.self_device_time_total for event in kernels) / 1e6
    page = ["| kernel | calls a step | us a step |", "|---|---|---|"]
    page += [
        f"| {e.key[:60]} | {e.count / steps:.1f} | {e.self_device_time_total / steps:.0f} |"
        for e in kernels[:20]
    ]
    seen = (
        f"batch {batch}: {wall / steps * 1e3:.2f} ms a step, the device works {busy / steps * 1e3:.2f} ms "
        f"of it in {sum(e.count for e in kernels) / steps:.0f} kernels and copies: idle {1 - busy / wall:.0%}"
    )
    return {"verdict": "measured", "seen": seen, "page": page}
