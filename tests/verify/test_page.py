"""The page: verdict first, nothing fetched, nothing of the input taken for markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from deepinfer.verify.page import render_html
from deepinfer.verify.page_parts import heat_map, perplexity_chart, token_strip

VERDICT: dict[str, Any] = {
    "verdict": "same",
    "exit_code": 0,
    "num_comparisons": 1234,
    "seconds": 5.0,
    "subject": {"model": "<mini>", "profile": "strict"},
    "fingerprint": {"kernels": "abc", "packages": {"torch": "2"}},
    "notes": ["a & b"],
    "perplexity": [],
    "checks": [
        {
            "name": "batch",
            "status": "same",
            "detail": "alone = <together>",
            "num_comparisons": 7,
            "seconds": 1.0,
            "cells": {"prose": {"num_cases": 2, "num_rows": 7, "num_differing": 0}},
            "failure": None,
        }
    ],
}


class Balanced(HTMLParser):
    """Collects tags that are opened and closed, and attributes that fetch something."""

    VOID = frozenset({"meta", "line", "circle", "br", "!doctype"})

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.stack.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


@pytest.mark.parametrize("name", ["same", "different", "inconclusive"])
def test_the_page_is_whole_and_fetches_nothing(name: str) -> None:
    page = render_html({**VERDICT, "verdict": name})
    parser = Balanced()
    parser.feed(page)
    assert parser.stack == []
    assert parser.fetched == []
    assert "url(" not in page
    assert page.index(f"<h1>{name}</h1>") < page.index("Checks")
    assert "&lt;mini&gt;" in page
    assert "alone = &lt;together&gt;" in page


def test_a_red_cell_tells_how_many_rows_differ() -> None:
    check = {**VERDICT["checks"][0], "cells": {"code": {"num_cases": 1, "num_rows": 9, "num_differing": 4}}}
    assert "4 / 9" in heat_map([check])
    assert 'class="none"' in heat_map([check, VERDICT["checks"][0]])


def test_the_strip_has_a_mark_for_each_row() -> None:
    strip = token_strip({"strip": [0, 1, 99, 10_001, 2**31, -1], "strip_start": 5})
    marks = [part.split('"')[0] for part in strip.split('<div class="strip">')[1].split('<i class="')[1:]]
    assert marks == ["u0", "u1", "u1", "u3", "u4", "u4"]
    assert "position 10: not comparable" in strip


def test_the_chart_shows_value_interval_and_reference() -> None:
    bar = {"label": "prose", "num_tokens": 300, "ppl": 12.5, "low": 10.0, "high": 16.0, "reference": 12.4}
    alone = {**bar, "label": "code", "reference": None, "low": None, "high": None}
    chart = perplexity_chart([bar, alone])
    assert chart.count('class="bar"') == 1
    assert chart.count('class="ring"') == 1
    assert chart.count('class="dot"') == 2
    assert ">12.5 " in chart
