"""Perplexity of the texts a verdict looked at, with error bars, beside what was locked or a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.baselines.key import Key
from deepinfer.baselines.records import Entry
from deepinfer.engine.api import RequestFailure, ScoreRequest
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.stats import clustered_mean, exact_sum
from deepinfer.verify.context import CheckContext
from deepinfer.verify.reference_data import load_references

MIN_TOKENS = 32
"""Fewer tokens than this say nothing worth a picture."""


@dataclass(frozen=True, kw_only=True)
class PerplexityBar:
    """Perplexity of one text.

    Attributes:
        label: the text.
        num_tokens: scored tokens.
        num_documents: samples they lie in.
        ppl: perplexity per token.
        low, high: 95 % interval that takes samples as the independent draws; None with a single sample.
        reference: perplexity of the same tokens as locked, or by the bundled reference outputs; None without.
    """

    label: str
    num_tokens: int
    num_documents: int
    ppl: float
    low: float | None
    high: float | None
    reference: float | None = None


def baseline_bars(
    scored: Mapping[Key, SampleRows], locked: Callable[[Key], Entry | None]
) -> tuple[PerplexityBar, ...]:
    """One bar a workload; the reference is what ``locked`` gives for its samples, if it knows them all."""
    workloads: dict[str, list[Key]] = {}
    for key in scored:
        workloads.setdefault(key.scope.workload_name, []).append(key)
    bars = []
    for workload, keys in workloads.items():
        entries = [entry for key in keys if (entry := locked(key)) is not None]
        nll, num_tokens = math.fsum(float.fromhex(e.nll) for e in entries), sum(e.num_tokens for e in entries)
        reference = math.exp(nll / num_tokens) if len(entries) == len(keys) and num_tokens else None
        bars.append(_bar(workload, [scored[key].logprob[scored[key].valid] for key in keys], reference))
    return _drawable(bars)


def sample_bars(context: CheckContext) -> tuple[PerplexityBar, ...]:
    """The samples that checks share, one document each: for a model that nobody has locked."""
    results = zip(context.base_samples, context.base_results, strict=True)
    return _drawable(
        [_bar(s.workload, [r.logprobs[r.valid]]) for s, r in results if not isinstance(r, RequestFailure)]
    )


def reference_bars(context: CheckContext) -> tuple[PerplexityBar, ...]:
    """The sequences of the bundled reference outputs beside the perplexity these give."""
    if context.reference_dir is None:
        return ()
    references = load_references(context.reference_dir, "fp32_q")
    results = context.base.score(
        [ScoreRequest(request_id=item.name, token_ids=item.token_ids) for item in references]
    )
    scored = [result.logprobs[result.valid] for result in results if not isinstance(result, RequestFailure)]
    num_tokens = sum(len(values) for values in scored)
    if len(scored) < len(references) or not num_tokens:
        return ()
    nll = math.fsum(item.mean_nll * len(values) for item, values in zip(references, scored, strict=True))
    return _drawable([_bar("reference outputs", scored, math.exp(nll / num_tokens))])


def _bar(
    label: str, logprobs: Sequence[npt.NDArray[np.float32]], reference: float | None = None
) -> PerplexityBar:
    found = clustered_mean([-exact_sum(values) for values in logprobs], [len(values) for values in logprobs])
    interval = found.interval() if found else None
    low, high = (math.exp(interval[0]), math.exp(interval[1])) if interval else (None, None)
    return PerplexityBar(
        label=label,
        num_tokens=found.num_tokens if found else 0,
        num_documents=found.num_documents if found else 0,
        ppl=math.exp(found.mean) if found else math.nan,
        low=low,
        high=high,
        reference=reference,
    )


def _drawable(bars: Sequence[PerplexityBar]) -> tuple[PerplexityBar, ...]:
    return tuple(bar for bar in bars if bar.num_tokens >= MIN_TOKENS and math.isfinite(bar.ppl))
