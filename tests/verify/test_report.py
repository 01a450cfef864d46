from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from deepinfer.verify.compare import compare_arrays
from deepinfer.verify.report import render_json, render_text, write_files
from deepinfer.verify.result import CheckResult, LocatedDifference, Status, Verdict


@pytest.fixture
def verdict() -> Verdict:
    """One check of each kind."""
    comparison = compare_arrays(np.array([1.0, np.nan], np.float32), np.array([1.0, 2.0], np.float32))
    difference = LocatedDifference(case="a | b", array="logprobs", comparison=comparison, position=1)
    results = (
        CheckResult(name="rerun", status=Status.SAME, detail="equal", num_comparisons=1234, seconds=1.25),
        CheckResult(
            name="batch",
            status=Status.DIFFERENT,
            detail="a | b\x1b differ",
            difference=difference,
            num_different=1,
        ),
        CheckResult(name="threads", status=Status.SKIPPED, detail="not run"),
        CheckResult(name="graphs", status=Status.NOT_APPLICABLE, detail="no GPU <here>"),
        CheckResult(name="nonfinite", status=Status.INCONCLUSIVE, detail="NaN"),
        CheckResult(name="baseline", status=Status.UNLOCKED, detail="missing"),
    )
    return Verdict(
        results=results, subject={"model": "mini", "profile": "strict"}, notes=("a note",), seconds=2
    )


def test_text_ends_with_the_verdict_and_shows_every_check(verdict: Verdict) -> None:
    lines = render_text(verdict).splitlines()
    assert lines[0] == "model mini  profile strict"
    assert lines[-2] == "a note"
    assert lines[-1].startswith("verdict: different (1,234 comparisons")
    assert lines[-1].endswith("exit code 1)")
    for name, mark in [("rerun", "same"), ("batch", "DIFFERENT"), ("threads", "SKIPPED"), ("graphs", "n/a")]:
        assert any(line.startswith(name) and mark in line for line in lines)


def test_json_is_strict_and_complete(verdict: Verdict) -> None:
    record = json.loads(render_json(verdict), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert (record["verdict"], record["exit_code"], record["num_comparisons"]) == ("different", 1, 1234)
    assert [check["status"] for check in record["checks"]] == [
        "same",
        "different",
        "skipped",
        "not_applicable",
        "inconclusive",
        "unlocked",
    ]
    first = record["checks"][1]["difference"]["comparison"]["first"]
    assert (first["coordinates"], first["left_hex"], first["ulp"]) == ([1], "0x7fc00000", None)
    assert record["checks"][1]["difference"]["comparison"]["max_abs_diff"] is None


def test_junit_counts_what_did_not_run_as_an_error_and_never_as_passed(
    verdict: Verdict, tmp_path: Path
) -> None:
    path = tmp_path / "junit.xml"
    write_files(verdict, junit=path, summary=None)
    suite = ElementTree.parse(path).getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "1",
        "errors": "3",
        "skipped": "1",
    }
    kinds = {case.get("name"): case[0].tag for case in suite}
    assert kinds == {
        "rerun": "system-out",
        "batch": "failure",
        "threads": "error",
        "graphs": "skipped",
        "nonfinite": "error",
        "baseline": "error",
    }


def test_the_summary_is_appended_and_keeps_its_table_whole(verdict: Verdict, tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n", encoding="utf-8")
    write_files(verdict, junit=None, summary=path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n### deepinfer verify: different\n")
    assert "| batch | **different** | 0 | a \\| b\x1b differ |" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(verdict.results)
