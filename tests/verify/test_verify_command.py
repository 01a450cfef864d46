"""``deepinfer verify`` from the outside: output, files and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from deepinfer.cli import main
from deepinfer.engine.api import EngineConfig
from deepinfer.verify import runner
from deepinfer.verify.context import CheckContext

MakeContext = Callable[..., CheckContext]


@pytest.fixture
def verify(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command on the fake engine, with faults seeded by keyword."""

    def run(*arguments: str, **seeded: Any) -> Result:
        context = make_context(**seeded)
        fake = partial(runner.run_verify, open_context=lambda model_dir, engine, size: context)
        monkeypatch.setattr(runner, "run_verify", fake)
        return CliRunner().invoke(main, ["verify", *arguments], env={"GITHUB_STEP_SUMMARY": None})

    return run


def test_same_is_zero(verify: Callable[..., Result]) -> None:
    result = verify()
    assert result.exit_code == 0, result.output
    assert "verdict: same" in result.stdout.splitlines()[-1]
    assert f"[0/{len(runner.CHECKS)}] nonfinite" in result.stderr


def test_different_is_one(verify: Callable[..., Result]) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(results) == 7:
            for result in results:
                result.final_logits.view(np.uint32)[0] ^= 1

    result = verify("--check", "batch", score=fault)
    assert result.exit_code == 1
    assert "batch/7-first" in result.stdout


def test_values_that_are_not_finite_are_five(verify: Callable[..., Result]) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        results[0].logits[5] = np.inf

    assert verify(score=fault).exit_code == 5


def test_interruption_is_one_hundred_and_thirty(verify: Callable[..., Result]) -> None:
    def interrupt(config: EngineConfig, results: list[Any]) -> None:
        raise KeyboardInterrupt

    assert verify(score=interrupt).exit_code == 130


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--check", "nothing"], "unknown check 'nothing'"),
        (["--tier", "deep"], "'deep' is not one of"),
        (["--model", "no/such/folder"], "does not exist"),
        (["--threads", "0"], "0 is not in the range"),
    ],
)
def test_usage_is_two(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["verify", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_json_holds_the_verdict_and_nothing_else(verify: Callable[..., Result]) -> None:
    result = verify("--json", "--check", "rerun")
    record = json.loads(result.stdout)
    assert (record["exit_code"], record["checks"][0]["name"]) == (0, "rerun")


def test_a_report_without_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "junit.xml"
    result = CliRunner().invoke(main, ["verify", "--tier", "metadata", "--junit", str(missing)])
    assert result.exit_code == 2
    assert "its folder does not exist; create it, or write elsewhere" in result.stderr


def test_files_for_other_tools_are_written(verify: Callable[..., Result], tmp_path: Path) -> None:
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    assert verify("--tier", "metadata", "--junit", str(junit), "--summary", str(summary)).exit_code == 0
    assert 'failures="0"' in junit.read_text(encoding="utf-8")
    assert "| yoco-metadata | same |" in summary.read_text(encoding="utf-8")


def test_the_list_explains_every_check() -> None:
    lines = CliRunner().invoke(main, ["verify", "--list"]).stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert names[: len(runner.CHECKS)] == [check.name for check in runner.CHECKS]
    assert len(names) == len(runner.CHECKS) + 13
    assert all(len(line.split()) > 5 for line in lines)
