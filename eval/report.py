"""Text of an evaluation, a scoring and a comparison: plain tables, every figure with its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.eval.compare import Comparison, perplexity_ratio
from deepinfer.eval.figures import CorpusLine, EvalResult, SampleLine
from deepinfer.eval.paired import FirstDifference, PolicyComparison
from deepinfer.eval.perplexity import CorpusFigures, corpus_figures
from deepinfer.eval.score import ScoreReport
from deepinfer.eval.stats import MIN_DOCUMENTS, Z_95

_SAMPLE_COLUMNS = ("sample", "tokens", "words", "bytes", "nats/token", "token ppl", "bits/byte")
_CORPUS_COLUMNS = (
    "workload",
    "policy",
    "docs",
    "tokens",
    "words",
    "bytes",
    "nats/token",
    "± SE",
    "token ppl",
    "± SE",
    "word ppl",
    "byte ppl",
    "bits/byte",
)


def render_eval(result: EvalResult) -> str:
    """The per-sample table of each workload and policy, then one table with a line for each corpus."""
    lines = [describe_configuration(result.configuration)]
    lines += [f"note: {note}" for note in result.notes]
    for corpus in result.corpora:
        lines += ["", f"{corpus.workload}, policy {corpus.policy}"]
        lines += render_table(_SAMPLE_COLUMNS, [_sample_cells(sample) for sample in corpus.samples])
        lines += [f"  {sample.sample_id}: {sample.problem}" for sample in corpus.samples if sample.problem]
        lines += _truncation_note(corpus.samples)
    lines += [
        "",
        *render_table(_CORPUS_COLUMNS, [_corpus_cells(corpus) for corpus in result.corpora], text_columns=2),
    ]
    lines.append(
        "SE: clustered by document. Bytes and words are those of the scored tokens; '-' where undefined."
    )
    lines.append("Policies are different conventions: their figures are not comparable with each other.")
    if any(corpus.figures and _is_small(corpus.figures) for corpus in result.corpora):
        lines.append(f"Fewer than {MIN_DOCUMENTS} documents: take the standard errors with caution.")
    if result.run:
        lines.append(f"run: {result.run}")
    return "\n".join(lines)


def render_score(report: ScoreReport) -> str:
    """What was scored, and each sample that was not."""
    lines = [f"scored {report.num_scored_tokens} tokens of {report.num_samples} samples into {report.out}"]
    lines += [f"failed: sample {name!r}: {reason}" for name, reason in report.failures.items()]
    lines += [
        f"not finite: sample {name!r} has a NaN or infinite log-probability" for name in report.non_finite
    ]
    return "\n".join(lines)


def render_comparison(comparison: Comparison) -> str:
    """Verdict first, then each policy's paired difference, first differing token and ULP histogram."""
    lines = [f"{comparison.verdict.value}: {comparison.reason}"]
    lines += [f"A: {comparison.left}", f"B: {comparison.right}"]
    lines += [
        f"setting {key}: {left!r} in A, {right!r} in B"
        for key, (left, right) in comparison.changed_settings.items()
    ]
    for policy in comparison.policies:
        lines += ["", *_comparison_lines(policy)]
    return "\n".join(lines)


def describe_configuration(configuration: Mapping[str, Any]) -> str:
    """One line with everything that labels a figure besides workload and policy."""
    prefill = configuration["prefill"]
    if configuration["keep"] is not None:
        prefill += f" (keep {configuration['keep']})"
    parts = [
        f"checkpoint {configuration['checkpoint'][:12]}",
        f"engine {configuration['engine']} ({configuration['backend']})",
        f"profile {configuration['profile']}",
        f"prefill {prefill}",
        f"cache {configuration['cache_format']}",
        f"begin token {configuration['begin_token']}",
    ]
    if configuration["max_tokens"] is not None:
        parts.append(f"first {configuration['max_tokens']} tokens of each text")
    return " · ".join(parts)


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> list[str]:
    """Lines of a table; the first ``text_columns`` columns go left, numbers right."""
    widths = [max(len(row[index]) for row in [header, *rows]) for index in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if index < text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [header, *rows]
    ]


def _sample_cells(line: SampleLine) -> list[str]:
    figures = line.figures
    if figures is None:
        return [line.sample_id, "failed" if line.is_failure else "not finite", *["-"] * 5]
    corpus = corpus_figures([figures])
    mean = corpus.mean_nll.mean if corpus.mean_nll else None
    return [
        line.sample_id,
        str(figures.num_tokens),
        _count(figures.num_words),
        str(figures.num_bytes),
        _number(mean, 4),
        _number(corpus.token_perplexity, 3),
        _number(corpus.bits_per_byte, 4),
    ]


def _corpus_cells(line: CorpusLine) -> list[str]:
    figures = line.figures
    if figures is None:
        return [line.workload, line.policy, *["-"] * 4, "not finite", *["-"] * 6]
    mean = figures.mean_nll
    return [
        line.workload,
        line.policy,
        str(mean.num_documents if mean else 0),
        str(mean.num_tokens if mean else 0),
        _count(figures.num_words),
        str(figures.num_bytes),
        _number(mean.mean if mean else None, 4),
        _number(mean.standard_error if mean else None, 4),
        _number(figures.token_perplexity, 3),
        _number(figures.token_perplexity_error, 3),
        _number(figures.word_perplexity, 2),
        _number(figures.byte_perplexity, 4),
        _number(figures.bits_per_byte, 4),
    ]


def _truncation_note(samples: Sequence[SampleLine]) -> list[str]:
    cut = [sample for sample in samples if sample.num_dropped]
    unscored = [sample for sample in samples if sample.figures and not sample.figures.num_tokens]
    notes = []
    if cut:
        dropped = sum(sample.num_dropped for sample in cut)
        notes.append(f"  {len(cut)} documents truncated, {dropped} tokens left out")
    if unscored:
        notes.append(
            f"  {len(unscored)} documents too short for this policy, first {unscored[0].sample_id!r}"
        )
    return notes


def _is_small(figures: CorpusFigures) -> bool:
    return figures.mean_nll is not None and figures.mean_nll.num_documents < MIN_DOCUMENTS


def _comparison_lines(policy: PolicyComparison) -> list[str]:
    lines = [
        f"policy {policy.policy}: {policy.num_tokens} tokens scored in both, "
        f"{policy.num_one_sided} in one only, {policy.num_different} rows differ"
    ]
    if policy.first:
        lines.append(f"  first difference: {_describe_first(policy.first)}")
    delta, ratio = policy.delta, perplexity_ratio(policy)
    if delta and ratio is not None:
        error = f" ± {Z_95 * delta.standard_error:.3e} (95 %)" if delta.standard_error is not None else ""
        lines.append(
            f"  B - A: {delta.mean:+.6e} nats/token{error}, clustered over {delta.num_documents} documents; "
            f"perplexity ratio {ratio:.8f}"
        )
    if policy.ulp_counts:
        shown = ", ".join(f"{name}: {count}" for name, count in policy.ulp_counts.items())
        lines.append(f"  tokens by distance in ULP: {shown}")
    return lines


def _describe_first(first: FirstDifference) -> str:
    where = f"sample {first.sample_id!r}, position {first.position}, token {first.token_id}:"
    if first.column == "valid":
        return f"{where} scored in {'A' if first.values[0] else 'B'} only"
    if first.bits is None:
        return f"{where} {first.column} {first.values[0]:g} in A, {first.values[1]:g} in B"
    sides = [f"{value:.9g} (0x{bits:08x})" for value, bits in zip(first.values, first.bits, strict=True)]
    distance = "beside a NaN" if first.ulp is not None and first.ulp < 0 else f"{first.ulp} ULP apart"
    return f"{where} {first.column} {sides[0]} in A, {sides[1]} in B, {distance}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value < 1e9 else f"{value:.3e}"
