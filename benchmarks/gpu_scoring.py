"""Scoring on the device: how fast beside the libraries' kernels, recorded or not, and what the host does."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from gpu_engine_promise import prompts

from deepinfer.engine.api import EngineConfig, RequestFailure, ScoreRequest
from deepinfer.engine.llm import LLM
from deepinfer.kernels.gpu import direct

_SEQUENCES, _CONTEXT, _ROUNDS = 16, 1024, 7


def _asked() -> list[ScoreRequest]:
    drawn = prompts(_SEQUENCES, _CONTEXT)
    return [ScoreRequest(request_id=str(i), token_ids=ids) for i, ids in enumerate(drawn)]


def _uneven() -> list[ScoreRequest]:
    """Documents of many lengths, so that waves of many shapes come."""
    return [
        ScoreRequest(request_id=str(i), token_ids=ids[: 96 + 211 * i % 929])
        for i, ids in enumerate(prompts(48, _CONTEXT, seed=3))
    ]


def _scored(llm: LLM, asked: list[ScoreRequest]) -> bytes:
    said = b""
    for result in llm.score(asked):
        if isinstance(result, RequestFailure):
            raise RuntimeError(result.reason)
        said += result.logprobs.tobytes() + result.ranks.tobytes()
    return said


def scoring_ratio(fast: EngineConfig) -> dict[str, Any]:
    """Passes of every variant in turns: medians, ratios, and whether recording moved a bit."""
    variants = {
        "fast": fast,
        "library": replace(fast, backend="library"),
        "fast, not recorded": replace(fast, recorded_steps=False),
        "library, not recorded": replace(fast, backend="library", recorded_steps=False),
    }
    sizes = {"prefix_caching": False, "max_batch_tokens": 8192}
    subjects = {name: LLM(None, replace(config, **sizes)) for name, config in variants.items()}
    asked, uneven = _asked(), _uneven()
    said = {name: [_scored(llm, asked) for _ in range(4)] for name, llm in subjects.items()}
    various = {name: [_scored(llm, uneven) for _ in range(3)] for name, llm in subjects.items()}
    plain = "fast, not recorded"
    wrong = [
        name
        for name in ("fast", plain)
        if set(said[name]) != {said[plain][0]} or set(various[name]) != {various[plain][0]}
    ]
    speeds: dict[str, list[float]] = {name: [] for name in subjects}
    speeds |= {f"{name}, uneven": [] for name in ("fast", "library")}
    for _ in range(_ROUNDS):
        for name in speeds:
            kind, given = (name.removesuffix(", uneven"), uneven if "uneven" in name else asked)
            started = time.perf_counter()
            _scored(subjects[kind], given)
            spent = time.perf_counter() - started
            speeds[name].append(sum(len(one.token_ids) for one in given) / spent)
    page = ["| tokens a second | median | least | most |", "|---|---|---|---|"]
    page += [f"| {n} | {median(v):.0f} | {min(v):.0f} | {max(v):.0f} |" for n, v in speeds.items()]
    medians = {name: median(values) for name, values in speeds.items()}
    ratio = medians["fast"] / medians["library"]
    uneven_ratio = medians["fast, uneven"] / medians["library, uneven"]
    unrecorded = medians[plain] / medians["library, not recorded"]
    seen = (
        f"fast {medians['fast']:.0f} tokens a second, library {medians['library']:.0f}: ratio {ratio:.2f}, "
        f"uneven lengths {uneven_ratio:.2f}, not recorded {unrecorded:.2f}; "
        f"recorded unlike plain: {wrong or 'none'}"
    )
    verdict = "DIFFER" if wrong else "equal"
    return {"verdict": verdict, "seen": seen, "page": page, "figures": speeds, "ratio": ratio}


def scoring_host(config: EngineConfig) -> dict[str, Any]:
    """Host time of a pass: launches by kernel and their cost, then functions by own time."""
    llm = LLM(None, replace(config, prefix_caching=False, max_batch_tokens=8192, recorded_steps=False))
    asked = _asked()
    _scored(llm, asked)
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    sound = direct.Kernel.launch

    def watched(kernel: direct.Kernel, *given: Any) -> None:
        started = time.perf_counter()
        sound(kernel, *given)
        name = kernel.function.fn.__name__
        spent[name] += time.perf_counter() - started  # type: ignore[assignment]
        counts[name] += 1

    direct.Kernel.launch = watched  # type: ignore[method-assign]
    try:
        started = time.perf_counter()
        _scored(llm, asked)
        whole = time.perf_counter() - started
    finally:
        direct.Kernel.launch = sound  # type: ignore[method-assign]
    page = ["| kernel | launches a pass | us each |", "|---|---|---|"]
    page += [f"| {n} | {c} | {spent[n] / c * 1e6:.1f} |" for n, c in counts.most_common(20)]
    profile, out = cProfile.Profile(), io.StringIO()
    profile.enable()
    _scored(llm, asked)
    torch.cuda.synchronize()
    profile.disable()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(24)
    page += ["", "```", *(line for line in out.getvalue().splitlines() if line.strip()), "```"]
    seen = (
        f"{sum(counts.values())} Triton launches a pass of {whole * 1e3:.0f} ms, "
        f"{sum(spent.values()) * 1e3:.0f} ms of it in them"
    )
    return {"verdict": "measured", "seen": seen, "page": page}
