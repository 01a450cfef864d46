"""Kernel set ``ascend``: the bytes of the CPU, with nothing that its chips lack."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from beside import HELPERS, Beside

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
BESIDE = ["interpreted_ascend.py"]
FEW = 48


@pytest.fixture(scope="module")
def found(beside: Beside) -> dict[str, Any]:
    answer: dict[str, Any] = beside.answer("interpreted_ascend.py")
    return answer


def test_ops_have_the_bytes_of_the_cpu_when_calls_are_cut(found: dict[str, Any]) -> None:
    assert len(found["verdicts"]) >= 24
    assert {name: verdict for name, verdict in found["verdicts"].items() if verdict} == {}


def test_no_launch_holds_more_programs_than_the_chip_takes(found: dict[str, Any]) -> None:
    assert 16 < found["largest_grid"] <= FEW


def test_nothing_that_the_chips_lack_is_used_and_the_watch_would_see_it(found: dict[str, Any]) -> None:
    assert {name: needs for name, needs in found["needs"].items() if needs} == {}
    assert found["control"] == {"records": ["uint8"], "route": ["fp64"]}


def same_logs(found: dict[str, Any]) -> None:
    assert [different for _, different in found["near"].values()] == [0, 0]
    assert (found["softplus"], found["special"]) == (0, 0)
    # where float64 itself rounds to the other neighbour: right as they are listed, wrong if they were not
    assert found["listed"] == {"log": [0, 5], "log1p": [0, 3]}


def test_logarithms_without_float64_have_its_bits(found: dict[str, Any]) -> None:
    assert min(looked_at for looked_at, _ in found["logs"]["near"].values()) > 5_000
    same_logs(found["logs"])


def run(*arguments: str) -> dict[str, Any]:
    """What a helper script prints."""
    script, *rest = arguments
    command = [sys.executable, str(HELPERS / script), *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.slow
def test_no_float32_has_a_logarithm_that_rounds_otherwise() -> None:
    """Only where the float64 result lies close to the middle of two float32 could the rounding differ."""
    answer = run("interpreted_log.py", "all")
    assert min(looked_at for looked_at, _ in answer["near"].values()) > 1_000_000
    same_logs(answer)


@pytest.mark.slow
def test_profile_fast_has_the_bytes_of_the_cpu_too() -> None:
    answer = run("interpreted_ascend.py", "fast")
    assert {name: verdict for name, verdict in answer["verdicts"].items() if verdict} == {}
    assert {name: needs for name, needs in answer["needs"].items() if needs} == {}


@pytest.mark.slow
def test_the_engine_answers_with_the_bytes_of_the_cpu_and_needs_nothing_else() -> None:
    found = run("interpreted_engine.py")
    assert len(found["tokens"]) == 2
    assert found["same"]
    assert found["needs"] == []


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
