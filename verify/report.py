"""A verdict as text for a person, and the files that machines read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from deepinfer.verify.check import Check
from deepinfer.verify.explain_text import explanation_lines
from deepinfer.verify.page import render_html
from deepinfer.verify.report_files import render_json, render_junit, render_markdown, to_document
from deepinfer.verify.result import CheckResult, Status, Verdict

__all__ = ["listing_records", "render_json", "render_listing", "render_text", "write_files"]

_MARKS = {
    Status.SAME: "same",
    Status.DIFFERENT: "DIFFERENT",
    Status.UNLOCKED: "UNLOCKED",
    Status.INCONCLUSIVE: "INCONCLUSIVE",
    Status.SKIPPED: "SKIPPED",
    Status.NOT_APPLICABLE: "n/a",
}


def render_text(verdict: Verdict) -> str:
    """A table of checks, what a person must know besides, and the verdict last."""
    head = "  ".join(f"{label} {value}" for label, value in verdict.subject.items())
    rows = [("check", "result", "comparisons", "seconds", "what was found")]
    rows += [_row(result) for result in verdict.results]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {mark:<{widths[1]}}  {count:>{widths[2]}}  {seconds:>{widths[3]}}  {found}"
        for name, mark, count, seconds, found in rows
    ]
    return "\n".join([head, "", *lines, *explanation_of(verdict), "", *closing_lines(verdict)])


def explanation_of(verdict: Verdict) -> list[str]:
    """The first failing case of every check that has one, a blank line before each."""
    return [
        line
        for result in verdict.results
        if result.failure is not None
        for line in ("", f"-- {result.name}", *explanation_lines(result.failure.explanation))
    ]


def closing_lines(verdict: Verdict) -> list[str]:
    """The notes, and the verdict last."""
    return [
        *verdict.notes,
        f"verdict: {verdict.name} ({verdict.num_comparisons:,} comparisons of whole logits rows, "
        f"{verdict.seconds:.1f} s, exit code {verdict.exit_code})",
    ]


def listing_records(checks: Sequence[Check]) -> list[dict[str, str | bool | None]]:
    """The checks as records: name, about, tier, needs_model."""
    return [
        {
            "name": check.name,
            "about": check.about,
            "tier": check.tier.value if check.tier else None,
            "needs_model": check.needs_model,
        }
        for check in checks
    ]


def render_listing(records: Sequence[dict[str, str | bool | None]]) -> str:
    """One line per check."""
    width = max(len(str(record["name"])) for record in records)
    return "\n".join(f"{record['name']!s:<{width}}  {record['about']}" for record in records)


def write_files(
    verdict: Verdict, *, junit: Path | None = None, html: Path | None = None, summary: Path | None = None
) -> list[str]:
    """Write the JUnit file and the page, and append the Markdown summary, where asked for.

    Returns:
        A line for each file that could not be written; a verdict is not lost for one.
    """
    wanted: list[tuple[Path | None, str, Callable[[], str]]] = [
        (junit, "w", lambda: render_junit(verdict)),
        (html, "w", lambda: render_html(to_document(verdict))),
        (summary, "a", lambda: render_markdown(verdict)),  # the step may have written there before
    ]
    failed = []
    for path, mode, text in wanted:
        if path is None:
            continue
        try:
            with path.open(mode, encoding="utf-8") as file:
                file.write(text())
        except OSError as error:
            failed.append(f"{path}: {error.strerror or error}")
    return failed


def _row(result: CheckResult) -> tuple[str, str, str, str, str]:
    count = f"{result.num_comparisons:,}" if result.num_comparisons else "-"
    return result.name, _MARKS[result.status], count, f"{result.seconds:.1f}", result.detail
