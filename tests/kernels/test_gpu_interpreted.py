"""The device kernels in Triton's interpreter, made exact: the bytes of the CPU kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import strict_cases

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
HELPERS = Path(strict_cases.__file__).parent
SMALL = [case.name for case in strict_cases.all_cases() if case.small]


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    command = [sys.executable, str(HELPERS / "interpreted_cases.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", SMALL)
def test_bytes_of_the_cpu(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == ""


def test_an_unfused_multiply_and_add_is_seen(verdicts: dict[str, str]) -> None:
    assert "differ" in verdicts["control"]


def test_gemm_rows_keep_their_bits_in_any_tile() -> None:
    done = subprocess.run(
        [sys.executable, str(HELPERS / "interpreted_gemm.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["counters_left"] == 0
    assert found["error"] < 1e-6
    assert found["moved_by_another_chunk"] > 0, "the check would not see a changed order"
