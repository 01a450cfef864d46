"""Turns on the device: bits of every policy against eager steps, speed of speculation, host time."""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import struct
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu_engine_promise import requests
from turn_log import beliefs, log_of, table

from deepinfer.engine.api import EngineConfig, GenerateRequest, RequestFailure, SamplingParams
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.drafter import KnownContinuation
from deepinfer.engine.speculation.options import Speculation
from deepinfer.eval.bench_speculation import SpeculationBench, _prompts

BATCHES = (1, 16, 64)
_NEW_TOKENS = 96


def _said(llm: LLM, asked: Sequence[GenerateRequest]) -> tuple[bytes, dict[tuple[str, int], tuple[int, ...]]]:
    """Everything that was said, as bytes, and the tokens by request."""
    said, tokens = b"", {}
    for request, result in zip(asked, llm.generate(asked), strict=True):
        if isinstance(result, RequestFailure):
            raise RuntimeError(result.reason)
        for record in result[0].records:
            ids = [record.token_id or 0, *record.top_ids]
            reals = [record.raw_logprob, record.processed_logprob, *record.top_logprobs]
            said += struct.pack(f"<{len(ids)}q{len(reals)}d", *ids, *reals)
        tokens[request.request_id, 0] = result[0].token_ids
    return said, tokens


def same_bytes(config: EngineConfig, is_long: bool) -> dict[str, Any]:
    """Every policy, synchronous and not, in turns: the bytes of eager steps without drafts."""
    base = LLM(None, replace(config, recorded_steps=False, prefix_caching=False))
    # alternatives keep turns from following each other unseen, so asynchronous runs ask for none
    asked = {
        False: requests(12, 150, 48),
        True: [replace(r, params=replace(r.params, num_logprobs=0)) for r in requests(12, 150, 48)],
    }
    wanted = {asynchronous: _said(base, given)[0] for asynchronous, given in asked.items()}
    _, tokens = _said(base, asked[True])
    seen, wrong = [], []
    for policy in ("off", "fixed", "fixed:2", "confidence", "known"):
        for asynchronous in (False, True) if is_long else (True,):
            named = Speculation.from_text("fixed" if policy == "known" else policy)
            variant = replace(config, speculation=named, asynchronous=asynchronous, recorded_steps=True)
            llm = base.with_config(replace(variant, prefix_caching=asynchronous))
            if policy == "known":
                llm = llm.with_drafter(KnownContinuation(tokens, 5))
            given = asked[asynchronous]
            rounds = [_said(llm, given)[0] == wanted[asynchronous] for _ in range(2)]
            name = f"{policy}{', asynchronous' * asynchronous}"
            stats = llm._core.scheduler.stats
            seen.append(
                f"{name}: {llm._core.launcher.num_recorded} graphs, {stats.num_unseen} of {stats.num_steps} "
                "steps unseen"
            )
            wrong += [] if all(rounds) else [name]
    text = f"12 sequences of 48 tokens, twice: {', '.join(seen)}; unlike eager: {wrong or 'none'}"
    return {"verdict": "DIFFER" if wrong else "equal", "seen": text}


def _decoding(core: EngineCore, asked: Sequence[GenerateRequest]) -> tuple[float, int]:
    """Seconds and tokens of everything behind the first step."""
    for request in asked:
        core.add(request)
    while core.has_unfinished and not core.step():
        pass
    started, count = time.perf_counter(), 0
    while core.has_unfinished:
        count += len(core.step())
    return time.perf_counter() - started, count


def speculation_speed(
    config: EngineConfig, seconds: float, is_short: bool, rounds: int = 5, log: Path | None = None
) -> dict[str, Any]:
    """Tokens a second of every policy against plain decoding, in turns: medians of alternating rounds.

    ``is_short`` leaves out synchronous decoding and known drafts. Late graphs fall into measured rounds.
    ``log`` is a file for all steps of all rounds (``turn_log``); asked for, the rounds are those of the log.
    """
    started = time.perf_counter()
    base = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
    prompts = []
    for name in ("prose", "code", "technical"):
        prompts.append(_prompts(base, name, SpeculationBench(), max(BATCHES)))
    page = [
        "| batch | variant | tokens/s | x plain | tokens a step | graphs | of these, in measured rounds |"
    ]
    page.append("|---|---|---|---|---|---|---|")
    seen, details, figures, logbook = [], [], {}, {}
    for batch in BATCHES:
        params = SamplingParams(temperature=0.0, seed=7, max_tokens=_NEW_TOKENS, ignore_eos=True)
        pool = [ids for group in zip(*prompts, strict=True) for ids in group]
        sets = [
            [
                GenerateRequest(request_id=f"{s}.{i}", token_ids=ids, params=params)
                for i, ids in enumerate(pool[s * batch : (s + 1) * batch])
            ]
            for s in range(3 if batch == 1 else 1)
        ]
        subjects = {
            name: base.with_config(
                replace(
                    base.config,
                    speculation=Speculation.from_text(name.split()[0]),
                    asynchronous="async" in name,
                )
            )
            for name in (
                *("off", "off async", "fixed:1 async", "fixed:2 async", "fixed async"),
                "confidence async",
            )
        }
        if is_short:
            del subjects["off"]
        else:
            known: dict[tuple[str, int], tuple[int, ...]] = {}
            for asked in sets:
                known |= _said(subjects["off"], asked)[1]
            drafter = KnownContinuation(known, 5)
            subjects["known async"] = subjects["fixed async"].with_drafter(drafter)
        logs = {name: log_of(llm._core) for name, llm in subjects.items()} if log else {}
        rests: dict[str, list[tuple[int, float, Any]]] = {name: [] for name in subjects}
        for name, llm in subjects.items():
            for _ in range(6 if name.startswith("confidence") else 2):
                for asked in sets:
                    taken, _ = _decoding(llm._core, asked)
                    if log:
                        rests[name].append((len(logs[name].steps), taken, beliefs(llm._core)))
        first = {name: len(logged.steps) for name, logged in logs.items()}
        speeds: dict[str, list[float]] = {name: [] for name in subjects}
        before = {name: llm._core.launcher.num_recorded for name, llm in subjects.items()}
        for _ in range(rounds):
            for name, llm in subjects.items():
                found = [_decoding(llm._core, asked) for asked in sets]
                taken = sum(second for second, _ in found)
                speeds[name].append(sum(count for _, count in found) / taken)
                if log:
                    rests[name].append((len(logs[name].steps), taken, beliefs(llm._core)))
            if time.perf_counter() - started > seconds:
                break
        medians = {name: median(values) for name, values in speeds.items()}
        plain = max(medians.get("off", 0.0), medians["off async"])
        for name, value in medians.items():
            stats = subjects[name].draft_stats
            length = f"{stats.accepted_length:.2f}" if stats is not None else ""
            graphs = subjects[name]._core.launcher.num_recorded
            late = graphs - before[name]
            ratio = f"{value / plain:.3f}"
            page.append(f"| {batch} | {name} | {value:.0f} | {ratio} | {length} | {graphs} | {late} |")
        seen.append(f"batch {batch}: " + ", ".join(f"{n} {v / plain:.3f}" for n, v in medians.items()))
        figures[batch] = medians
        for name, logged in logs.items():
            logbook[f"{batch} {name}"] = {
                "rounds": rests[name],
                "measured_from": first[name],
                "steps": logged.steps,
            }
            details += ["", f"Steps of measured rounds, batch {batch}, {name}:", ""]
            details += table(logged.steps[first[name] :])
        if log:
            log.write_text(json.dumps(logbook))
    return {"verdict": "measured", "seen": "; ".join(seen), "page": page + details, "figures": figures}


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
        _decoding(core, asked)
    turns = core.launcher.turns
    assert turns is not None
    marks: list[tuple[Any, Any]] = []
    sound = turns.recordings.play

    def play(*given: Any) -> Any:
        pair = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
        pair[0].record()
        found = sound(*given)
        pair[1].record()
        marks.append(pair)
        return found

    object.__setattr__(turns.recordings, "play", play)
    _decoding(core, asked)
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
        _decoding(llm._core, requests(batch, 128 + batch, 30))
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
