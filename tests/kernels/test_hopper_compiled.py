"""The kernels for warp groups compile for a Hopper chip: wgmma alone, and registers suffice.

A stack is what made attention a third slower on the chip. What the kernels compute,
``benchmarks/gpu_layers.py`` checks there: nothing else can run them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import strict_cases
import torch

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
    pytest.mark.skipif(sys.platform != "linux", reason="triton's compiler"),
]
Found = dict[str, dict[str, int]]
STACK = 8
"""Bytes a thread: what is read and written once."""


def compiled(*names: str) -> Found:
    script = Path(strict_cases.__file__).parent / "compiled_hopper.py"
    done = subprocess.run([sys.executable, str(script), *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Found = json.loads(done.stdout)
    return found


def test_the_scan_fits_its_registers_and_a_narrower_one_does_not() -> None:
    found = compiled("scan", "spilled")
    assert found["scan"] == {"stack": 0, "stores": 0, "wgmma": 8, "mma": 0}
    assert found["spilled"]["stack"] > 0
    assert found["spilled"]["stores"] > 0


@pytest.mark.slow
def test_all_kernels_multiply_with_wgmma_and_keep_little_in_memory() -> None:
    found = compiled("whole", "within", "again", "attend", "window", "inner", "outer", "few", "some")
    assert all(one["wgmma"] > 0 and one["mma"] == 0 for one in found.values())
    assert {name: one["stores"] for name, one in found.items() if one["stores"]} == {}
    assert {name: one["stack"] for name, one in found.items() if one["stack"] > STACK} == {}


def test_a_table_that_is_not_what_kernels_read_is_refused() -> None:
    """One row seen many times has a step of 0 from row to row; kernels would read past its end."""
    from deepinfer.kernels.gpu.index_scan import check_table
    from deepinfer.kernels.gpu.select16 import PoolGroups

    table = torch.zeros(1, 32, dtype=torch.int32)
    check_table(table.repeat(4, 1))
    for use in (check_table, lambda wrong: PoolGroups(wrong, 128)):
        with pytest.raises(ValueError, match="contiguous"):
            use(table.expand(4, -1))


def test_only_large_weights_that_fp8_blocks_hold_are_kept_as_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.kernels.gpu import fp8_linear

    place = torch.device("cpu")
    exact = torch.randint(-8, 9, (1024, 5120), generator=torch.Generator().manual_seed(8)).float()
    assert fp8_linear.keep_fp8(exact, place) is None, "no chip that reads them"
    monkeypatch.setattr(fp8_linear, "has_wgmma", lambda place: True)
    kept = fp8_linear.keep_fp8(exact, place)
    assert kept is not None
    assert (kept.num_groups, kept.num_outputs, kept.num_inputs) == (1, 1024, 5120)
    assert kept.words.numel() * 4 == exact.numel(), "a byte a weight"
    inexact = exact.clone()
    inexact[500, 5000] = 1.0 + 2.0**-6
    for other in (inexact, exact[:64].clone(), exact[:, 3:].contiguous()):
        assert fp8_linear.keep_fp8(other, place) is None
