"""A verdict as one page that needs nothing else: verdict first, then where to look."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from deepinfer.engine.errors import InputError
from deepinfer.verify.page_parts import failure_section, heat_map, perplexity_chart
from deepinfer.verify.page_style import STYLE

_SAYINGS = {
    "same": "Every byte that was compared is the same.",
    "different": "A byte differs.",
    "inconclusive": "The question stays open.",
    "unlocked": "A baseline is missing, orphaned or damaged.",
    "lock": "A lock timed out or was lost.",
    "usage": "The command could not be understood.",
}


def read_verdict(path: Path) -> dict[str, Any]:
    """The JSON that ``deepinfer verify --json`` wrote.

    Raises:
        InputError: it is something else.
        OSError: it cannot be read.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or not {"verdict", "checks", "subject", "exit_code"} <= record.keys():
            raise ValueError("fields are missing")
    except ValueError as error:
        raise InputError(f"{path}: no verdict ({error}); write one with deepinfer verify --json") from None
    return dict(record)


def render_html(verdict: Mapping[str, Any]) -> str:
    """The page, from the JSON form of a verdict."""
    name = str(verdict["verdict"])
    checks = verdict["checks"]
    failures = [check for check in checks if check.get("failure")]
    body = [
        _banner(verdict),
        *(failure_section(check["name"], check["failure"]) for check in failures),
        _section("Checks", _check_table(checks)),
        _section("Rows compared, by check and workload", heat_map(checks)),
    ]
    if verdict.get("perplexity"):
        body.append(_section("Perplexity, with 95 % intervals", perplexity_chart(verdict["perplexity"])))
    body.append(_section("Fingerprint", _fingerprint(verdict)))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>deepinfer verify: {escape(name)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body><main>\n{''.join(body)}</main></body>\n</html>\n"
    )


def _banner(verdict: Mapping[str, Any]) -> str:
    name = str(verdict["verdict"])
    subject = verdict["subject"]
    notes = "".join(f"<li>{escape(str(note))}</li>" for note in verdict.get("notes", ()))
    facts = (
        f"{verdict.get('num_comparisons', 0):,} whole logits rows compared as bytes in "
        f"{verdict.get('seconds') or 0:.0f} s, exit code {verdict['exit_code']}"
    )
    model = f"{subject.get('model', '')}, profile {subject.get('profile', '')}"
    return (
        f'<header class="banner {escape(name)}"><p class="kicker">deepinfer verify, {escape(model)}</p>'
        f"<h1>{escape(name)}</h1><p>{_SAYINGS.get(name, '')} {facts}.</p>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + "</header>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>\n"


def _check_table(checks: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for check in checks:
        status = str(check["status"])
        count = f"{check['num_comparisons']:,}" if check["num_comparisons"] else ""
        rows.append(
            f'<tr><th scope="row">{escape(check["name"])}</th>'
            f'<td><span class="mark {escape(status)}">{escape(status.replace("_", " "))}</span></td>'
            f'<td class="number">{count}</td><td class="number">{check["seconds"] or 0:.1f}</td>'
            f'<td class="detail">{escape(check["detail"])}</td></tr>'
        )
    head = (
        "<tr><th>check</th><th>result</th><th class='number'>rows</th>"
        "<th class='number'>s</th><th>what was found</th></tr>"
    )
    return (
        f'<div class="scroll"><table class="checks"><thead>{head}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _fingerprint(verdict: Mapping[str, Any]) -> str:
    items = {**verdict["subject"], **verdict.get("fingerprint", {})}
    rows = "".join(
        f"<div><dt>{escape(str(key))}</dt><dd>{escape(_plain(value))}</dd></div>"
        for key, value in items.items()
    )
    return f'<dl class="facts">{rows}</dl>'


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items() if item)
    return str(value)
