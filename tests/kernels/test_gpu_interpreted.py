"""The device kernels in Triton's interpreter, made exact: the bytes of the CPU kernels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import strict_cases
from beside import Beside

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
BESIDE = ["interpreted_cases.py", "interpreted_gemm.py"]
SMALL = [case.name for case in strict_cases.all_cases() if case.small]


@pytest.fixture(scope="module")
def verdicts(beside: Beside) -> dict[str, str]:
    found: dict[str, str] = beside.answer("interpreted_cases.py")
    return found


@pytest.mark.parametrize("name", SMALL)
def test_bytes_of_the_cpu(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == ""


def test_an_unfused_multiply_and_add_is_seen(verdicts: dict[str, str]) -> None:
    assert "differ" in verdicts["control"]


def test_gemm_rows_keep_their_bits_in_any_tile(beside: Beside) -> None:
    found: dict[str, Any] = beside.answer("interpreted_gemm.py")
    assert found["wrong"] == []
    assert found["counters_left"] == 0
    assert found["rounded_on_the_way"] == 0
    assert found["error"] < 1e-6
    assert found["moved_by_another_chunk"] > 0, "the check would not see a changed order"


def test_layers_of_fp8_weights_have_the_bytes_of_the_same_weights_in_bfloat16(beside: Beside) -> None:
    differ: dict[str, int] = beside.answer("interpreted_gemm.py")["fp8"]
    assert {name: count for name, count in differ.items() if count and "control" not in name} == {}
    controls = [count for name, count in differ.items() if "control" in name]
    assert len(controls) == 2
    assert all(controls), "a scale of another block would not be seen"


def test_gemm_of_groups_in_one_launch_has_the_bytes_of_a_launch_each(beside: Beside) -> None:
    differ: dict[str, int] = beside.answer("interpreted_gemm.py")["groups"]
    assert {name: count for name, count in differ.items() if count and "control" not in name} == {}
    controls = [count for name, count in differ.items() if "control" in name]
    assert len(controls) == 2
    assert all(controls), "weights of another group would not be seen"


def test_few_rows_with_weights_asked_for_ahead_are_those_of_tiles(beside: Beside) -> None:
    differ: dict[str, int] = beside.answer("interpreted_gemm.py")["few"]
    assert {name: bad for name, bad in differ.items() if not name.startswith("control")} == {
        "1 x 40": 0,
        "1 x 320": 0,
        "2 x 128": 0,
    }
    assert all(bad for name, bad in differ.items() if name.startswith("control"))
