"""Another project's tests lock the log-probabilities of their own engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

THEIR_TEST = """
import numpy as np

def test_greeting(locked_logprobs):
    token_ids, logprobs = [1, 2, 3], np.array([np.nan, -0.5, {value}], np.float32)
    locked_logprobs("greeting", token_ids, logprobs)
"""


def run(folder: Path, *options: str, value: str = "-1.25", ci: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_theirs.py").write_text(THEIR_TEST.format(value=value))
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "deepinfer.baselines.pytest_plugin"]  # named, so that it need not be installed
    environment = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_lock_once_then_one_bit_is_red(tmp_path: Path) -> None:
    store = ["--deepinfer-baselines", "locked"]
    first = run(tmp_path, *store)
    assert first.returncode == 1
    assert "run once with --deepinfer-lock" in first.stdout
    assert run(tmp_path, *store, "--deepinfer-lock").returncode == 0
    assert run(tmp_path, *store).returncode == 0
    changed = run(tmp_path, *store, value="np.nextafter(np.float32(-1.25), np.float32(0))")
    assert changed.returncode == 1
    assert "position 2, token 3" in changed.stdout
    assert "1 ULP" in changed.stdout


@pytest.mark.parametrize("options", [["--deepinfer-baselines", "locked", "--deepinfer-lock"]])
def test_ci_never_locks(tmp_path: Path, options: list[str]) -> None:
    assert run(tmp_path, *options, ci="true").returncode == 1
    assert not (tmp_path / "locked").exists()


def test_without_a_store_it_is_skipped(tmp_path: Path) -> None:
    result = run(tmp_path, "-rs")
    assert result.returncode == 0
    assert "no --deepinfer-baselines DIR" in result.stdout
