"""Profile fast reads packed records in its kernels: the bytes of its ops on decoded ones (interpreter)."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import fast_references
import pytest
from beside import Beside

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
SCRIPT = "interpreted_records.py"
BESIDE = [SCRIPT]
REST = ["attention mxfp8 32", "attention fp4 128", "index 64", "index 32", "index 128"]
Found = dict[str, dict[str, float]]


def compare(found: Found) -> None:
    for name, own in found.items():
        assert own.pop("control") > 0, f"{name}: another table would not be seen"
        assert set(own.values()) == {0}, (name, own)


def run(*names: str) -> Found:
    command = [sys.executable, str(Path(fast_references.__file__).parent / SCRIPT), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Found = json.loads(done.stdout)
    return found


def test_records_give_the_bytes_of_decoded_rows(beside: Beside) -> None:
    found: Found = beside.answer(SCRIPT)
    assert len(found) == 2
    compare(found)


@pytest.mark.slow
def test_records_of_other_widths_do_too() -> None:
    compare(run(*REST))


@pytest.mark.slow
def test_the_released_width_is_right_to_rounding() -> None:
    """Its kernels add in an order of their own."""
    own = run("released")["released"]
    assert own["error"] < 0.004
    assert own["control"] > 0.01


def layouts(*arguments: str) -> dict[str, list[str]]:
    script = Path(fast_references.__file__).parent / "compiled_records.py"
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert len(found) == 2
    assert sorted(map(len, found.values())) == [2, 8], "attention also as it rotates, and asks ahead"
    assert all("nvidia_mma" in kinds[0] for kinds in found.values())
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="triton's compiler")
def test_the_matrix_unit_adds_records_in_the_order_of_decoded_rows() -> None:
    """The compiler deals channels to lanes by the width of a load, unless it does not see the load.

    That a query is rotated within the launch must not show either, nor that rows are asked for ahead.
    """
    for name, kinds in layouts().items():
        assert set(kinds) == {kinds[0]}, name


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="triton's compiler")
def test_another_order_is_seen() -> None:
    floats, records, turned, *_ = layouts("control")["pool_attention._attend_kernel"]
    assert floats not in (records, turned)
