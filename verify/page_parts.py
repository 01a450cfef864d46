"""Pictures of a verdict: heat map, per-token strip of a failing sample, perplexity with error bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_CHART_WIDTH, _ROW_HEIGHT, _LABEL_WIDTH, _VALUE_WIDTH = 720, 26, 190, 96


def heat_map(checks: Sequence[Mapping[str, Any]]) -> str:
    """Checks by workloads: how many rows were compared, and how many of them differ."""
    rows = [check for check in checks if check.get("cells")]
    names = list(dict.fromkeys(name for check in rows for name in check["cells"]))
    if not rows:
        return "<p>No check of this run is made of cases.</p>"
    most = max(cell["num_rows"] for check in rows for cell in check["cells"].values())
    head = "".join(f"<th>{escape(name) or '-'}</th>" for name in names)
    body = []
    for check in rows:
        cells = "".join(_cell(check["cells"].get(name), most) for name in names)
        body.append(f'<tr><th scope="row">{escape(check["name"])}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table class="heat"><thead><tr><th>check</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="legend"><span class="swatch ok"></span>stronger: more rows compared, all the same'
        '<span class="swatch bad"></span>rows that differ<span class="swatch none"></span>'
        "nothing compared</p>"
    )


def _cell(cell: Mapping[str, Any] | None, most: int) -> str:
    if cell is None or cell["num_cases"] == 0:
        return '<td class="none"></td>'
    rows, differing = cell["num_rows"], cell["num_differing"]
    title = f"{cell['num_cases']} cases, {rows:,} rows, {differing:,} differ"
    if differing:
        return f'<td class="bad" title="{title}">{differing:,} / {rows:,}</td>'
    shade = 0.12 + 0.5 * math.log1p(rows) / math.log1p(max(most, 2))
    return f'<td class="ok" style="--shade:{shade:.2f}" title="{title}">{rows:,}</td>'


def failure_section(check: str, failure: Mapping[str, Any]) -> str:
    """A failing case: numbers, the strip of its tokens, likely tokens of both sides, how to see it again."""
    found = failure["explanation"]
    facts = {
        "case": found["case_id"],
        "sides": found["sides"],
        "tokens": f"{len(found['token_ids'])} ids, sha256 {found['token_hash']}",
    }
    if found["mismatch"]:
        facts["difference"] = f"{found['array']}: {found['mismatch']}"
    else:
        place = "" if found["position"] is None else f"position {found['position']}, "
        ulp = "not comparable" if found["ulp"] is None else f"{found['ulp']:,} ulp"
        facts |= {
            "first": f"{place}{found['array']}{found['coordinates']}",
            "left": f"{found['left_hex']} ({found['left']})",
            "right": f"{found['right_hex']} ({found['right']}), {ulp}",
            "extent": f"{found['num_differing']:,} of {found['num_elements']:,} elements, "
            f"{found['num_differing_rows']} of {found['num_rows']} rows, "
            f"max |d| {_figure(found['max_abs_diff'])}",
            "divergence": f"KL(left, right) {_figure(found['kl_left_right'])} nats, "
            f"KL(right, left) {_figure(found['kl_right_left'])} nats",
            "verdict": str(found["flip"]),
        }
        facts |= {f"boundary {i + 1}": line for i, line in enumerate(found["boundaries"])}
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in facts.items()
    )
    return (
        f'<section class="failure"><h2>{escape(check)} differs</h2><dl class="facts">{rows}</dl>'
        f"{token_strip(found)}{_tops(found)}"
        f'<p>Run again and name the op:</p><pre class="repro">{escape(found["repro"])}</pre></section>\n'
    )


def token_strip(found: Mapping[str, Any]) -> str:
    """One mark per compared row: how far its most different logit lies apart, in ulp."""
    strip: Sequence[int] = found["strip"]
    if not strip:
        return ""
    marks = []
    for index, ulp in enumerate(strip):
        position = found["strip_start"] + index
        level = 0 if ulp == 0 else 4 if ulp < 0 else 1 + min(3, int(math.log10(ulp) / 2))
        text = "equal" if ulp == 0 else "not comparable" if ulp < 0 else f"{ulp:,} ulp"
        marks.append(f'<i class="u{level}" title="position {position}: {text}"></i>')
    last = found["strip_start"] + len(strip) - 1
    return (
        f"<figure><figcaption>Positions {found['strip_start']} to {last}, one mark each; "
        'equal <i class="u0"></i>, apart by up to 100 ulp <i class="u1"></i>, 10,000 <i class="u2"></i>, '
        '1,000,000 <i class="u3"></i>, more <i class="u4"></i></figcaption>'
        f'<div class="strip">{"".join(marks)}</div></figure>'
    )


def _tops(found: Mapping[str, Any]) -> str:
    if not found["top_left"]:
        return ""
    pairs = zip(found["top_left"], found["top_right"], strict=True)
    rows = "".join(
        f'<tr><td class="number">{left["token_id"]}</td><td class="number">{left["logprob"]:.6f}</td>'
        f'<td class="number">{right["token_id"]}</td><td class="number">{right["logprob"]:.6f}</td></tr>'
        for left, right in pairs
    )
    head = "<tr><th colspan='2'>most likely, left</th><th colspan='2'>most likely, right</th></tr>"
    return f'<div class="scroll"><table class="tops"><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def perplexity_chart(bars: Sequence[Mapping[str, Any]]) -> str:
    """Perplexity on a logarithmic axis: interval, value, and the reference as a ring."""
    logs = [math.log(bar[name]) for bar in bars for name in ("low", "ppl", "high", "reference") if bar[name]]
    low, high = min(logs), max(logs)
    span = max(high - low, 1e-9)
    height = _ROW_HEIGHT * len(bars) + 34
    width = _CHART_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH

    def x(value: float) -> float:
        return _LABEL_WIDTH + width * (0.03 + 0.94 * (math.log(value) - low) / span)

    parts = []
    for tick in _ticks(math.exp(low), math.exp(high)):
        parts.append(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{height - 26}"/>'
            f'<text class="tick" x="{x(tick):.1f}" y="{height - 8}" text-anchor="middle">{tick:g}</text>'
        )
    for index, bar in enumerate(bars):
        y = _ROW_HEIGHT * index + _ROW_HEIGHT / 2
        label = escape(str(bar["label"]))
        parts.append(f'<text x="{_LABEL_WIDTH - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        if bar["low"]:
            parts.append(
                f'<line class="bar" x1="{x(bar["low"]):.1f}" x2="{x(bar["high"]):.1f}" y1="{y}" y2="{y}"/>'
            )
        parts.append(f'<circle class="dot" cx="{x(bar["ppl"]):.1f}" cy="{y}" r="4"/>')
        if bar["reference"]:
            parts.append(f'<circle class="ring" cx="{x(bar["reference"]):.1f}" cy="{y}" r="7"/>')
        parts.append(
            f'<text x="{_CHART_WIDTH}" y="{y + 4:.1f}" text-anchor="end">{bar["ppl"]:.4g} '
            f'<tspan class="tick">n {bar["num_tokens"]:,}</tspan></text>'
        )
    return (
        f'<div class="scroll"><svg class="chart" viewBox="0 0 {_CHART_WIDTH} {height}" role="img" '
        f'aria-label="perplexity of {len(bars)} texts">{"".join(parts)}</svg></div>'
        '<p class="legend">dot: this engine; line: 95 % interval, samples as independent draws; '
        "ring: the same tokens as locked, or by the bundled reference outputs; n: tokens</p>"
    )


def _ticks(low: float, high: float) -> list[float]:
    steps = (1, 2, 5)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**d for d in decades for step in steps if low <= step * 10.0**d <= high]


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"
