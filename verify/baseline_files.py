"""Baseline checks for machines: JSON, a JUnit file with one test case a key, and what GitHub shows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from deepinfer.baselines.check import CheckStatus, KeyOutcome
from deepinfer.verify.baseline_run import CheckReport
from deepinfer.verify.result import VERDICT_NAMES

MAX_ANNOTATIONS = 10
"""GitHub shows ten annotations of a kind and step; further ones vanish without a word."""

MAX_SUMMARY_BYTES = 1024 * 1024 - 4096
"""A step summary above 1024 KiB is dropped whole."""


def check_to_dict(report: CheckReport) -> dict[str, Any]:
    """JSON values of a whole check."""
    return {
        "exit_code": report.exit_code,
        "verdict": VERDICT_NAMES[report.exit_code],
        "store": report.store,
        "counts": {status.value: count for status, count in report.counts.items()},
        "num_rows": report.num_rows,
        "keys": [_outcome_to_dict(outcome) for outcome in report.outcomes],
    }


def add_junit_cases(suite: ElementTree.Element, report: CheckReport) -> None:
    """One test case a key; what is not locked is an error, since most readers show a skip as green."""
    for outcome in report.outcomes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_printable(str(outcome.key.scope)),
            name=_printable(outcome.key.sample),
        )
        if not outcome.is_same:
            tag = "failure" if outcome.status is CheckStatus.DIFFERENT else "error"
            ElementTree.SubElement(case, tag, message=_printable(outcome.reason), type=outcome.status.value)


def render_junit(report: CheckReport) -> str:
    """A JUnit file of a check alone."""
    failures = report.counts.get(CheckStatus.DIFFERENT, 0)
    same = report.counts.get(CheckStatus.SAME, 0)
    suite = ElementTree.Element(
        "testsuite",
        name="deepinfer baselines",
        tests=str(len(report.outcomes)),
        failures=str(failures),
        errors=str(len(report.outcomes) - failures - same),
    )
    add_junit_cases(suite, report)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def github_annotations(report: CheckReport) -> Iterator[str]:
    """Workflow commands: one line that sums up, then the worst keys, as many as are shown."""
    worst = report.worst()
    if not worst:
        return
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    yield f"::error title=deepinfer baselines {VERDICT_NAMES[report.exit_code]}::{_escape(counts)}"
    for outcome in worst[: MAX_ANNOTATIONS - 1]:
        title = _escape(f"{outcome.status} {outcome.key.sample}").replace(":", "%3A").replace(",", "%2C")
        yield f"::error title={title}::{_escape(f'{outcome.key}: {outcome.reason}')}"


def render_markdown(report: CheckReport) -> str:
    """A step summary, cut to what is shown at all."""
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items()) or "no keys"
    head = [
        f"### deepinfer baselines: {VERDICT_NAMES[report.exit_code]}",
        "",
        f"{counts} ({report.store})",
        "",
    ]
    lines = ["| key | result | what was found |", "|---|---|---|"]
    size = sum(len(line.encode()) + 1 for line in (*head, *lines))
    worst = report.worst()
    for index, outcome in enumerate(worst):
        line = f"| {_cell(str(outcome.key))} | **{outcome.status}** | {_cell(outcome.reason)} |"
        size += len(line.encode()) + 1
        if size > MAX_SUMMARY_BYTES:
            lines += ["", f"... and {len(worst) - index} more; the JSON report has all of them"]
            break
        lines.append(line)
    return "\n".join([*head, *(lines if worst else []), ""]) + "\n"


def _outcome_to_dict(outcome: KeyOutcome) -> dict[str, Any]:
    first = outcome.first
    return {
        "key": str(outcome.key),
        "status": outcome.status.value,
        "reason": outcome.reason,
        "num_rows": outcome.num_rows,
        "num_different": outcome.num_different,
        "max_ulp": outcome.max_ulp,
        "moved": dict(outcome.moved),
        "first_difference": None
        if first is None
        else {
            "position": first.position,
            "token_ids": first.token_ids,
            "values": first.values,
            "bits": [None if bits is None else f"{bits:#010x}" for bits in first.bits],
            "ulp": first.ulp,
        },
    }


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
