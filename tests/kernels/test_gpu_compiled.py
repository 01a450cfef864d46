"""The device kernels compile for a Hopper chip, and to correctly rounded instructions only."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import strict_cases

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
    pytest.mark.skipif(sys.platform != "linux", reason="triton's compiler"),
    pytest.mark.slow,
]
INEXACT = re.compile(r"approx|\.full\.|\.ftz|tf32|^ex2|^lg2|^rcp(?!\.rn)|^mma|^wgmma")
"""Instructions that a strict kernel must not hold: approximations, flushed subnormals, matrix units."""
FLOATING = re.compile(r"^(add|sub|mul|fma|div|sqrt)\b.*\.f(32|64)$")


@pytest.fixture(scope="module")
def instructions() -> dict[str, dict[str, int]]:
    script = Path(strict_cases.__file__).parent / "compiled_cases.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def test_every_instruction_is_correctly_rounded(instructions: dict[str, dict[str, int]]) -> None:
    assert len(instructions) > 30
    wrong = [f"{name}: {one}" for name, found in instructions.items() for one in found if INEXACT.search(one)]
    assert wrong == []


def test_no_multiply_and_add_may_be_fused_later(instructions: dict[str, dict[str, int]]) -> None:
    """PTX without ``.rn`` lets the assembler contract; it is told not to, and has nothing to contract."""
    loose = [
        f"{name}: {one}"
        for name, found in instructions.items()
        for one in found
        if FLOATING.match(one) and ".rn" not in one
    ]
    assert loose == []


@pytest.mark.parametrize("one", ["div.full.f32", "ex2.approx.ftz.f32", "add.ftz.f32", "wgmma.mma_async.sync"])
def test_an_inexact_instruction_is_seen(one: str) -> None:
    assert INEXACT.search(one)
