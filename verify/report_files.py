"""A verdict as JSON, as a JUnit file and as Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from deepinfer.verify.explain_text import explanation_lines
from deepinfer.verify.result import Status, Verdict

FORMAT_VERSION = 1


def render_json(verdict: Verdict) -> str:
    """The whole verdict; NaN and infinity, which JSON does not have, become null."""
    return json.dumps(to_document(verdict), indent=2, allow_nan=False)


def to_document(verdict: Verdict) -> dict[str, Any]:
    """The whole verdict as JSON values."""
    record = {
        "format_version": FORMAT_VERSION,
        "verdict": verdict.name,
        "exit_code": verdict.exit_code,
        "num_comparisons": verdict.num_comparisons,
        "seconds": verdict.seconds,
        "subject": verdict.subject,
        "fingerprint": verdict.fingerprint,
        "perplexity": [asdict(bar) for bar in verdict.perplexity],
        "notes": list(verdict.notes),
        "checks": [asdict(result) for result in verdict.results],
    }
    plain: dict[str, Any] = _finite(record)
    return plain


def render_junit(verdict: Verdict) -> str:
    """One test case per check and per case of a check.

    What did not run is an error, not a skip: most readers show skips as green.
    """
    cases = [item for result in verdict.results for item in result.items]
    statuses = [*(result.status for result in verdict.results), *(case.status for case in cases)]
    failures = statuses.count(Status.DIFFERENT)
    errors = sum(_is_error(status) for status in statuses)
    skips = statuses.count(Status.NOT_APPLICABLE)
    suite = ElementTree.Element(
        "testsuite",
        name="deepinfer verify",
        tests=str(len(statuses)),
        failures=str(failures),
        errors=str(errors),
        skipped=str(skips),
        time=f"{verdict.seconds:.3f}",
    )
    for result in verdict.results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="deepinfer.verify",
            name=result.name,
            time=f"{result.seconds:.3f}",
        )
        failure = result.failure
        lines = [] if failure is None else explanation_lines(failure.explanation)
        _add_outcome(case, result.status, result.detail, lines)
    for item in cases:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_printable(item.group), name=_printable(item.name)
        )
        _add_outcome(case, item.status, item.detail, ())
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def render_markdown(verdict: Verdict) -> str:
    """A short summary for the page of a continuous-integration run."""
    lines = [
        f"### deepinfer verify: {verdict.name}",
        "",
        "| check | result | comparisons | what was found |",
        "|---|---|---:|---|",
    ]
    for result in verdict.results:
        status = result.status.value.replace("_", " ")
        shown = status if result.status is Status.SAME else f"**{status}**"
        cells = (result.name, shown, f"{result.num_comparisons:,}", _cell(result.detail))
        lines.append(f"| {' | '.join(cells)} |")
    for result in verdict.results:
        if result.failure is not None:
            lines += ["", "```", *explanation_lines(result.failure.explanation), "```"]
    subject = ", ".join(f"{label} {value}" for label, value in verdict.subject.items())
    lines += ["", *(f"{note}  " for note in verdict.notes), f"{subject}, {verdict.seconds:.1f} s", ""]
    return "\n".join(lines) + "\n"


def _add_outcome(case: ElementTree.Element, status: Status, detail: str, lines: Sequence[str]) -> None:
    tag = {Status.DIFFERENT: "failure", Status.NOT_APPLICABLE: "skipped"}.get(status)
    if tag is None and _is_error(status):
        tag = "error"
    if tag is not None:
        found = ElementTree.SubElement(case, tag, message=_printable(detail), type=status.value)
        found.text = "\n".join(map(_printable, lines)) or None
    elif detail:
        ElementTree.SubElement(case, "system-out").text = _printable(detail)


def _is_error(status: Status) -> bool:
    return status in {Status.SKIPPED, Status.INCONCLUSIVE, Status.UNLOCKED}


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _printable(text: str) -> str:
    """Without the control characters that no XML document may hold."""
    return "".join(character if character.isprintable() else " " for character in text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
