"""Kernel set ``ascend``: what it covers has the bytes of the CPU; what it does not is listed with reasons."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from beside import Beside

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
BESIDE = ["interpreted_ascend.py"]
FEW = 48
OPS_OF_CASES = {
    "route": {"route"},
    "logprobs": {"log_softmax", "token_logprobs"},
    "sample": {"sample"},
}


@pytest.fixture(scope="module")
def found(beside: Beside) -> dict[str, Any]:
    answer: dict[str, Any] = beside.answer("interpreted_ascend.py")
    return answer


def test_covered_ops_have_the_bytes_of_the_cpu_when_calls_are_cut(found: dict[str, Any]) -> None:
    assert len(found["verdicts"]) >= 17
    assert {name: verdict for name, verdict in found["verdicts"].items() if verdict} == {}


def test_no_launch_holds_more_programs_than_the_chip_takes(found: dict[str, Any]) -> None:
    assert 16 < found["largest_grid"] <= FEW


def test_what_is_not_covered_needs_what_the_table_says_and_nothing_else_does(found: dict[str, Any]) -> None:
    from deepinfer.kernels.ascend.capability import NOT_COVERED

    for case, needs in found["needs"].items():
        ops = OPS_OF_CASES.get(case.split()[0], set())
        reasons = {NOT_COVERED[op] for op in ops}
        assert bool(needs) == bool(ops), f"{case} needs {needs}"
        assert reasons <= set(needs), f"{case} needs {needs}, the table says {reasons}"
    assert set().union(*OPS_OF_CASES.values()) == set(NOT_COVERED)
    assert found["control"] == ["uint8"], "the watch did not see that records of the NVIDIA set are unsigned"


@pytest.mark.parametrize("name", ["route", "log_softmax", "sample"])
def test_an_op_that_is_not_covered_says_why(name: str) -> None:
    from deepinfer.kernels.ascend.backend import AscendOps
    from deepinfer.kernels.ascend.capability import CHIPS

    ops = AscendOps(False, True, torch.device("cpu"), CHIPS[0])
    with pytest.raises(NotImplementedError, match=f"no {name}: its kernel needs .* triton-ascend lacks"):
        getattr(ops, name)


def test_turns_and_drafted_rows_take_no_kernel_of_nvidias_set() -> None:
    from deepinfer.kernels.ascend.backend import AscendOps
    from deepinfer.kernels.gpu.backend import GpuOps

    for name in ("plan_turn", "end_turn", "leave_turn", "draft_rows", "markov_decode"):
        assert getattr(AscendOps, name) is not getattr(GpuOps, name)


def test_a_row_that_is_too_wide_and_an_unknown_chip_are_refused() -> None:
    from deepinfer.kernels.ascend.capability import chip_of
    from deepinfer.kernels.ascend.row_blocks import rows_of_a_call

    assert rows_of_a_call(65_535, 80, fixed=30_720) == 435
    with pytest.raises(ValueError, match="a row needs 49 programs, a launch holds 48"):
        rows_of_a_call(48, 49)
    assert chip_of("Ascend910B3").name == "Ascend910B"
    with pytest.raises(ValueError, match="does not know chip 'H200'"):
        chip_of("H200")


def test_a_launch_on_an_npu_has_its_own_options_and_limit() -> None:
    from deepinfer.kernels.gpu.launching import launch_options

    assert launch_options("npu", (65_535,), 4) == {}
    assert launch_options("cuda", (65_536, 9), 4) == {"num_warps": 4, "enable_fp_fusion": False}
    with pytest.raises(ValueError, match="65536 programs"):
        launch_options("npu", (256, 256), 4)


def test_without_an_npu_the_set_is_refused() -> None:
    from deepinfer.kernels.dispatch import select_ops

    with pytest.raises(ValueError, match="needs an Ascend NPU"):
        select_ops("ascend", bf16=False)
