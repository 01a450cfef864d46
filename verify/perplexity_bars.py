"""Perplexity of the samples a verdict looked at, with error bars, beside the reference if there is one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deepinfer.engine.api import RequestFailure, ScoreRequest
from deepinfer.verify.context import CheckContext
from deepinfer.verify.reference_data import load_references

_Z95 = 1.96
MIN_TOKENS = 32
"""Fewer tokens than this say nothing that an error bar could hold."""


@dataclass(frozen=True, kw_only=True)
class PerplexityBar:
    """Perplexity of one text.

    Attributes:
        label: the text.
        num_tokens: scored tokens.
        ppl: perplexity per token.
        low, high: 95 % interval from the spread of the log-probabilities, tokens taken as independent.
        reference: perplexity by the bundled reference outputs, None without one.
    """

    label: str
    num_tokens: int
    ppl: float
    low: float
    high: float
    reference: float | None = None


def perplexity_bars(context: CheckContext) -> tuple[PerplexityBar, ...]:
    """Bars of the shared samples, and of the reference sequences beside their reference."""
    bars = []
    for sample, result in zip(context.base_samples, context.base_results, strict=True):
        if not isinstance(result, RequestFailure):
            bars.append(_bar(sample.workload, result.logprobs[result.valid]))
    if context.reference_dir is not None:
        for reference in load_references(context.reference_dir, "fp32_q"):
            [scored] = context.base.score(
                [ScoreRequest(request_id=reference.name, token_ids=reference.token_ids)]
            )
            if not isinstance(scored, RequestFailure):
                bars.append(
                    _bar(
                        f"reference {reference.name}",
                        scored.logprobs[scored.valid],
                        math.exp(reference.mean_nll),
                    )
                )
    return tuple(bar for bar in bars if bar.num_tokens >= MIN_TOKENS and math.isfinite(bar.ppl))


def _bar(
    label: str,
    logprobs: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    reference: float | None = None,
) -> PerplexityBar:
    nll = -logprobs.astype(np.float64)
    mean = float(nll.mean()) if nll.size else math.nan
    error = float(nll.std(ddof=1)) / math.sqrt(nll.size) if nll.size > 1 else math.nan
    return PerplexityBar(
        label=label,
        num_tokens=int(nll.size),
        ppl=math.exp(mean),
        low=math.exp(mean - _Z95 * error),
        high=math.exp(mean + _Z95 * error),
        reference=reference,
    )
