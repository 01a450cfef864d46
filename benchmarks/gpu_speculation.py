"""Speed of speculation on a device: every policy against plain decoding, in alternating rounds."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from turn_log import beliefs, log_of, table

from deepinfer.engine.api import EngineConfig, GenerateRequest, RequestFailure, SamplingParams
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.drafter import KnownContinuation
from deepinfer.engine.speculation.options import Speculation
from deepinfer.eval.bench_speculation import SpeculationBench, _prompts

BATCHES = (1, 16, 64)
_NEW_TOKENS = 96


def said(llm: LLM, asked: Sequence[GenerateRequest]) -> tuple[bytes, dict[tuple[str, int], tuple[int, ...]]]:
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


@dataclass(frozen=True)
class Decoded:
    """Seconds and tokens behind the first step: of everything, and until the first sequence ended."""

    seconds: float
    tokens: int
    full_seconds: float
    full_tokens: int


def decoding(core: EngineCore, asked: Sequence[GenerateRequest]) -> Decoded:
    """Decode all requests together."""
    for request in asked:
        core.add(request)
    while core.has_unfinished and not core.step():
        pass
    started, count, full = time.perf_counter(), 0, None
    while core.has_unfinished:
        count += len(core.step())
        if full is None and len(core._live) < len(asked):
            full = time.perf_counter() - started, count
    taken = time.perf_counter() - started
    return Decoded(taken, count, *(full or (taken, count)))


def speculation_speed(
    config: EngineConfig,
    seconds: float,
    is_short: bool,
    batches: Sequence[int] = BATCHES,
    rounds: int = 5,
    log: Path | None = None,
) -> dict[str, Any]:
    """Tokens a second of every policy against plain decoding, in turns: medians of alternating rounds.

    Requests are equally long, so plain decoding ends all at once; with drafts they end one by one, and the
    last ones decode alone. So each ratio is given twice: of whole rounds, and until the first one ended.
    ``is_short`` leaves out synchronous decoding and known drafts. Late graphs fall into measured rounds.
    ``log`` is a file for all steps of all rounds (``turn_log``); asked for, the rounds are those of the log.
    """
    started = time.perf_counter()
    base = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192))
    prompts = []
    for name in ("prose", "code", "technical"):
        prompts.append(_prompts(base, name, SpeculationBench(), max(batches)))
    page = [
        "| batch | variant | tokens/s | x plain | the same while all decode | tokens a step | graphs "
        "| of these, in measured rounds |"
    ]
    page.append("|---" * 8 + "|")
    seen, details, figures, logbook = [], [], {}, {}
    for batch in batches:
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
                known |= said(subjects["off"], asked)[1]
            drafter = KnownContinuation(known)
            subjects["known async"] = subjects["fixed async"].with_drafter(drafter)
        logs = {name: log_of(llm._core) for name, llm in subjects.items()} if log else {}
        rests: dict[str, list[tuple[int, float, Any]]] = {name: [] for name in subjects}
        for name, llm in subjects.items():
            for _ in range(6 if name.startswith("confidence") else 2):
                for asked in sets:
                    decoded = decoding(llm._core, asked)
                    if log:
                        rests[name].append((len(logs[name].steps), decoded.seconds, beliefs(llm._core)))
        first = {name: len(logged.steps) for name, logged in logs.items()}
        speeds: dict[str, list[float]] = {name: [] for name in subjects}
        full_speeds: dict[str, list[float]] = {name: [] for name in subjects}
        before = {name: llm._core.launcher.num_recorded for name, llm in subjects.items()}
        for _ in range(rounds):
            for name, llm in subjects.items():
                found = [decoding(llm._core, asked) for asked in sets]
                taken = sum(decoded.seconds for decoded in found)
                speeds[name].append(sum(decoded.tokens for decoded in found) / taken)
                full_s = sum(decoded.full_seconds for decoded in found)
                full_speeds[name].append(sum(decoded.full_tokens for decoded in found) / full_s)
                if log:
                    rests[name].append((len(logs[name].steps), taken, beliefs(llm._core)))
            if time.perf_counter() - started > seconds:
                break
        medians = {name: median(values) for name, values in speeds.items()}
        full = {name: median(values) for name, values in full_speeds.items()}
        plain = max(medians.get("off", 0.0), medians["off async"])
        full_plain = max(full.get("off", 0.0), full["off async"])
        for name, value in medians.items():
            stats = subjects[name].draft_stats
            length = f"{stats.accepted_length:.2f}" if stats is not None else ""
            graphs = subjects[name]._core.launcher.num_recorded
            late = graphs - before[name]
            ratios = f"{value / plain:.3f} | {full[name] / full_plain:.3f}"
            page.append(f"| {batch} | {name} | {value:.0f} | {ratios} | {length} | {graphs} | {late} |")
        ratios = (f"{n} {v / plain:.3f} ({full[n] / full_plain:.3f})" for n, v in medians.items())
        seen.append(f"batch {batch}: " + ", ".join(ratios))
        figures[batch] = {"whole": medians, "full": full}
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
