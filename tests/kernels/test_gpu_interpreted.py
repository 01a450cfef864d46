"""The device kernels in Triton's interpreter, with exact fused multiply-adds: the bytes of the CPU kernels."""

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


@pytest.fixture(scope="module", params=["strict", "fast"])
def verdicts(request: pytest.FixtureRequest) -> dict[str, str]:
    command = [sys.executable, str(HELPERS / "interpreted_cases.py"), request.param]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", SMALL)
def test_bytes_of_the_cpu(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == ""
