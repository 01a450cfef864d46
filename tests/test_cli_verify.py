"""Exit codes and outputs of verify, bisect, trace, replay and report through the real command and engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deepinfer.cli import main
from deepinfer.verify.faults.edit import edited
from deepinfer.verify.self_test import FAULTS

NO_SUMMARY = {"GITHUB_STEP_SUMMARY": None}
VERIFY = [sys.executable, "-P", "-c", "from deepinfer.cli import main; main()", "verify"]


def deepinfer(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env=NO_SUMMARY)


@contextmanager
def fault(name: str) -> Iterator[None]:
    """A seeded fault in force."""
    with edited(*next(known.edits for known in FAULTS if known.name == name)):
        yield


def test_zero_same_as_a_process() -> None:
    done = subprocess.run(
        [*VERIFY, "--tier", "metadata", "--quick"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("verdict: same")


def test_one_different_and_all_that_is_said_about_it(tmp_path: Path) -> None:
    files = {kind: tmp_path / f"verdict.{kind}" for kind in ("html", "pack", "junit", "md")}
    with fault("history-of-the-neighbour"):
        result = deepinfer(
            *("verify", "--quick", "--check", "batch", "--json"),
            *("--html", str(files["html"]), "--pack", str(files["pack"])),
            *("--junit", str(files["junit"]), "--summary", str(files["md"])),
        )
        replayed = deepinfer("replay", str(files["pack"]))
        taken_apart = deepinfer("bisect", str(files["pack"]), "--no-shrink", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    explanation = record["checks"][0]["failure"]["explanation"]
    assert explanation["repro"] == "deepinfer bisect batch/5-first --quick"
    assert 'failures="1"' in files["junit"].read_text(encoding="utf-8")
    assert "**different**" in files["md"].read_text(encoding="utf-8")
    page = files["html"].read_text(encoding="utf-8")
    assert "batch differs" in page
    assert explanation["left_hex"] in page

    assert replayed.exit_code == 1
    assert "still differs; both sides as packed" in replayed.stdout
    assert taken_apart.exit_code == 1
    assert json.loads(taken_apart.stdout)["location"]["layer"] == 1

    mended = deepinfer("replay", str(files["pack"]))
    assert mended.exit_code == 0
    assert "no difference here; the right side gives other bytes than when packed" in mended.stdout
    assert deepinfer("bisect", "batch/5-first", "--quick", "--no-shrink").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "--quick", "--thorough"], "not both"),
        (["verify", "--scenario", "none"], "unknown scenario 'none'"),
        (["verify", "--self-test", "--check", "grid"], "no fault is seeded for check 'grid'"),
        (["bisect", "batch/99-first"], "has no case '99-first' in size default; it has 2-first"),
        (["bisect", "nothing/x"], "no check 'nothing' made of cases"),
        (["replay", "no-such-file"], "no-such-file"),
        (["trace", "--out", "nowhere/t"], "its folder does not exist"),
    ],
)
def test_two_usage(arguments: list[str], message: str) -> None:
    result = deepinfer(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()[-1]) > 0


def test_five_inconclusive() -> None:
    with fault("infinite-logit"):
        result = deepinfer("verify", "--quick", "--check", "nonfinite", "--check", "threads")
    assert result.exit_code == 5
    assert "not finite" in result.stdout


def test_one_hundred_and_thirty_interrupted() -> None:
    command = [*VERIFY, "--check", "rerun", "--check", "batch"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts background jobs with interrupts ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    while "rerun" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1] == "interrupted"
    assert output == ""


def test_traces_of_two_versions_are_compared(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for path in (one, two):
        written = deepinfer("trace", "vllm-11778/strict-0", "--out", str(path), "--json")
        assert json.loads(written.stdout)["digests"] > 5_000
    same = deepinfer("bisect", str(one), str(two))
    assert same.exit_code == 0
    assert "digests that both traces hold are equal" in same.stdout
    with fault("window-of-the-step"):
        deepinfer("trace", "vllm-11778/strict-0", "--out", str(three))
    assert deepinfer("bisect", str(one), str(three)).exit_code == 0  # one chunk does not look back
    with fault("linear-races"):
        deepinfer("trace", "vllm-11778/strict-0", "--out", str(three))
    moved = deepinfer("bisect", str(one), str(three), "--json")
    assert moved.exit_code == 1
    assert json.loads(moved.stdout)["location"]["layer"] == 0


def test_a_stored_verdict_becomes_a_page(tmp_path: Path) -> None:
    verdict = deepinfer("verify", "--quick", "--tier", "metadata", "--json")
    (tmp_path / "v.json").write_text(verdict.stdout, encoding="utf-8")
    page = tmp_path / "v.html"
    assert deepinfer("report", str(tmp_path / "v.json"), "--out", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "<h1>same</h1>" in text
    assert "http" not in text  # nothing is fetched
    (tmp_path / "v.json").write_text("{}", encoding="utf-8")
    refused = deepinfer("report", str(tmp_path / "v.json"), "--out", str(page))
    assert refused.exit_code == 2
    assert "no verdict" in refused.stderr
