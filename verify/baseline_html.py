"""A diff as one self-contained page, with a small picture of each key's change."""

from __future__ import annotations

from html import escape

import numpy as np

from deepinfer.verify.baseline_diff import DiffReport, KeyDiff
from deepinfer.verify.baseline_text import describe_key_diff, render_diff

_WIDTH, _HEIGHT = 480, 64
_MAX_PICTURES = 200
_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:70em}pre{white-space:pre-wrap}"
    "svg{background:#f6f6f6;border:1px solid #ccc}article{margin:1.5em 0}"
)


def render_html(report: DiffReport) -> str:
    """The page; it needs nothing from elsewhere."""
    summary = render_diff(report).split("\n\n")[0]
    articles = [_article(diff) for diff in report.keys[:_MAX_PICTURES]]
    left = len(report.keys) - len(articles)
    more = f"<p>and {left} more keys</p>" if left > 0 else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>deepinfer baseline diff</title>'
        f"<style>{_STYLE}</style><h1>deepinfer baseline diff</h1><pre>{escape(summary)}</pre>"
        f"{''.join(articles)}{more}</html>\n"
    )


def picture(diff: KeyDiff) -> str:
    """Nats per token, pending minus locked, as an SVG: a line up is worse, its scale stands beside it."""
    delta = diff.delta
    if not len(delta):
        return ""
    num_columns = min(len(delta), _WIDTH)
    # The largest change of each column: a mean would hide the one token that moved.
    columns = [part[np.argmax(np.abs(part))] for part in np.array_split(delta, num_columns)]
    top = max(max(abs(float(value)) for value in columns), 1e-30)
    middle = _HEIGHT / 2
    bars = "".join(
        f"M{(index + 0.5) * _WIDTH / num_columns:.1f} {middle}v{-float(value) / top * (middle - 3):.2f}"
        for index, value in enumerate(columns)
        if value
    )
    label = f"change of NLL per token, largest {top:.3g} nats"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{label}"><path d="M0 {middle}h{_WIDTH}" stroke="#999"/>'
        f'<path d="{bars}" stroke="#b00020" fill="none"/></svg><div>{label}</div>'
    )


def _article(diff: KeyDiff) -> str:
    return f"<article><pre>{escape(chr(10).join(describe_key_diff(diff)))}</pre>{picture(diff)}</article>"
