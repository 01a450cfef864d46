"""The device kernels compile for the chips of the capability table, strict ones to exact instructions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import strict_cases

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
    pytest.mark.skipif(sys.platform != "linux", reason="triton's compiler"),
]
INEXACT = re.compile(r"approx|\.full\.|\.ftz|tf32|^ex2|^lg2|^rcp(?!\.rn)|^mma|^wgmma|^tcgen05")
"""Instructions that a strict kernel must not hold: approximations, flushed subnormals, matrix units."""
FLOATING = re.compile(r"^(add|sub|mul|fma|div|sqrt)\b.*\.f(32|64|32x2)$")
SHARED = {80: 163, 90: 227, 100: 227}
"""KiB of shared memory that a program may have, by chip."""
MATRIX = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
NATIVE = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X"
MEASURED_ONLY = {"gemm_few._few_kernel", "gemm._reduce_kernel", "gemm_wide._wide_kernel"}
"""Kernels of plans that only a chip with buckets of rows has."""
DECODING = {"expert_gemm._inner_kernel", "expert_gemm._outer_kernel"}
SPLITTING = {f"native_weights.{name}" for name in ("_inner_kernel", "_split_kernel")}


def run(script: str, *arguments: str) -> Any:
    """What a helper script prints."""
    path = Path(strict_cases.__file__).parent / script
    command = [sys.executable, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", params=sorted(SHARED))
def compiled(request: pytest.FixtureRequest) -> tuple[int, dict[str, Any]]:
    return request.param, run("compiled_targets.py", str(request.param))


@pytest.mark.slow
def test_every_strict_instruction_is_correctly_rounded(compiled: tuple[int, dict[str, Any]]) -> None:
    strict = compiled[1]["strict"]
    assert len(strict) > 30
    wrong = [f"{name}: {one}" for name, found in strict.items() for one in found if INEXACT.search(one)]
    assert wrong == []


@pytest.mark.slow
def test_no_multiply_and_add_may_be_fused_later(compiled: tuple[int, dict[str, Any]]) -> None:
    """PTX without ``.rn`` lets the assembler contract; it is told not to, and has nothing to contract."""
    loose = [
        f"{name}: {one}"
        for name, found in compiled[1]["strict"].items()
        for one in found
        if FLOATING.match(one) and ".rn" not in one
    ]
    assert loose == []


@pytest.mark.slow
def test_kernels_of_both_profiles_fit_the_chip_and_use_its_matrix_unit(
    compiled: tuple[int, dict[str, Any]],
) -> None:
    chip, found = compiled
    assert {name: size for name, size in found["shared"].items() if size > SHARED[chip] * 1024} == {}
    native = chip == 100
    left_out = (DECODING if native else {*SPLITTING, "native_experts._product_kernel"}) | (
        MEASURED_ONLY if chip != 90 else set()
    )
    assert set(found["left_out"]) == left_out
    unit = re.compile(r"mma\.sync|wgmma\.mma_async|tcgen05\.mma")
    matrix = {one for own in found["fast"].values() for one in own if unit.match(one)}
    assert any(one.startswith(MATRIX[chip]) for one in matrix)
    assert (NATIVE in matrix) == native


def test_native_products_are_native_on_one_chip_and_widened_on_another() -> None:
    found = run("compiled_native.py")
    assert found["100"] == [NATIVE]
    assert [one.split(".")[0] for one in found["90"]] == ["wgmma"]


@pytest.mark.parametrize(
    "one", ["div.full.f32", "ex2.approx.ftz.f32", "add.ftz.f32", "wgmma.mma_async.sync", "tcgen05.mma"]
)
def test_an_inexact_instruction_is_seen(one: str) -> None:
    assert INEXACT.search(one)
