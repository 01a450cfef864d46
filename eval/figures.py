"""The figures of an evaluation: a line for each sample and corpus, policy by policy, never merged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.errors import NonFiniteError
from deepinfer.eval.perplexity import CorpusFigures, DocumentFigures, corpus_figures, document_figures
from deepinfer.eval.samples import TextSample
from deepinfer.eval.shard_file import SampleOutcome
from deepinfer.eval.stats import bounded_exp


@dataclass(frozen=True, kw_only=True)
class SampleLine:
    """One sample under one policy: its figures, or the word that says why it has none.

    Attributes:
        sample_id: the sample's name.
        figures: None when the sample failed or is not finite.
        problem: the reason then; None otherwise.
        is_failure: the request could not be run, as against numbers that mean nothing.
        num_dropped: tokens that truncation left out.
    """

    sample_id: str
    figures: DocumentFigures | None
    problem: str | None
    is_failure: bool
    num_dropped: int


@dataclass(frozen=True, kw_only=True)
class CorpusLine:
    """One workload under one policy.

    Attributes:
        workload: its name.
        policy: label of the window policy.
        samples: a line for each document, in order.
        figures: over the documents that ran; None when one of them is not finite.
    """

    workload: str
    policy: str
    samples: tuple[SampleLine, ...]
    figures: CorpusFigures | None


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Everything ``deepinfer eval`` says.

    Attributes:
        configuration: the run's configuration, which labels every figure.
        corpora: one line for each workload and policy.
        notes: lines to show about the texts.
        run: the run folder, if one is kept.
    """

    configuration: Mapping[str, Any]
    corpora: tuple[CorpusLine, ...]
    notes: tuple[str, ...]
    run: Path | None

    @property
    def exit_code(self) -> int:
        """2: a sample could not be run; 5: a value is not finite or nothing was scored; otherwise 0."""
        problems = [line for corpus in self.corpora for line in corpus.samples if line.problem]
        if any(line.is_failure for line in problems):
            return 2
        empty = [c for c in self.corpora if c.figures is not None and c.figures.mean_nll is None]
        return 5 if problems or empty else 0

    @property
    def verdict(self) -> str:
        """Word for the exit code (product.md section 5); ``measured`` where nothing was compared."""
        return {0: "measured", 2: "usage", 5: "inconclusive"}[self.exit_code]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; sums also as exact hex floats, and null where a figure does not exist."""
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "configuration": dict(self.configuration),
            "notes": list(self.notes),
            "corpora": [_corpus_dict(line, self.configuration) for line in self.corpora],
        }


def collect_figures(
    configuration: Mapping[str, Any],
    samples: Sequence[TextSample],
    outcomes: Mapping[str, SampleOutcome],
    notes: tuple[str, ...],
    run: Path | None,
) -> EvalResult:
    """Figures of a run from its rows and the texts they score."""
    corpora = []
    for workload in configuration["workloads"]:
        members = [sample for sample in samples if sample.workload == workload]
        for policy in configuration["policies"]:
            lines = tuple(_sample_line(sample, outcomes[sample.sample_id], policy) for sample in members)
            measured = [line.figures for line in lines if line.figures]
            is_finite = all(line.figures or line.is_failure for line in lines)
            corpora.append(
                CorpusLine(
                    workload=workload,
                    policy=policy,
                    samples=lines,
                    figures=corpus_figures(measured) if is_finite else None,
                )
            )
    return EvalResult(configuration=configuration, corpora=tuple(corpora), notes=notes, run=run)


def _sample_line(sample: TextSample, outcome: SampleOutcome, policy: str) -> SampleLine:
    figures, problem = None, outcome.failure
    if problem is None:
        rows = next(rows for rows in outcome.rows if rows.policy == policy)
        try:
            figures = document_figures(rows, sample.token_bytes, sample.text)
        except NonFiniteError as error:
            problem = str(error)
    return SampleLine(
        sample_id=sample.sample_id,
        figures=figures,
        problem=problem,
        is_failure=outcome.failure is not None,
        num_dropped=sample.num_dropped,
    )


def _corpus_dict(line: CorpusLine, configuration: Mapping[str, Any]) -> dict[str, Any]:
    figures = line.figures
    mean = figures.mean_nll if figures else None
    interval = mean.interval() if mean else None
    return {
        "workload": line.workload,
        "policy": line.policy,
        "profile": configuration["profile"],
        "prefill": configuration["prefill"],
        "checkpoint": configuration["checkpoint"],
        "num_documents": mean.num_documents if mean else 0,
        "num_tokens": mean.num_tokens if mean else 0,
        "num_words": figures.num_words if figures else None,
        "num_bytes": figures.num_bytes if figures else None,
        "nll_sum": figures.nll_sum if figures else None,
        "nll_sum_hex": figures.nll_sum.hex() if figures else None,
        "mean_nll": mean.mean if mean else None,
        "mean_nll_standard_error": mean.standard_error if mean else None,
        "token_perplexity": _finite(figures.token_perplexity) if figures else None,
        "token_perplexity_standard_error": _finite(figures.token_perplexity_error) if figures else None,
        "token_perplexity_interval_95": [_finite(bounded_exp(end)) for end in interval] if interval else None,
        "word_perplexity": _finite(figures.word_perplexity) if figures else None,
        "byte_perplexity": _finite(figures.byte_perplexity) if figures else None,
        "bits_per_byte": figures.bits_per_byte if figures else None,
        "samples": [_sample_dict(sample) for sample in line.samples],
    }


def _sample_dict(line: SampleLine) -> dict[str, Any]:
    figures = line.figures
    return {
        "sample_id": line.sample_id,
        "problem": line.problem,
        "num_tokens": figures.num_tokens if figures else None,
        "num_words": figures.num_words if figures else None,
        "num_bytes": figures.num_bytes if figures else None,
        "num_dropped": line.num_dropped,
        "nll_sum": figures.nll_sum if figures else None,
        "nll_sum_hex": figures.nll_sum.hex() if figures else None,
        "mean_nll": figures.nll_sum / figures.num_tokens if figures and figures.num_tokens else None,
    }


def _finite(value: float | None) -> float | None:
    """JSON knows no infinity."""
    return value if value is not None and math.isfinite(value) else None
