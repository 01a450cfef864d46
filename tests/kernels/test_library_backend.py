"""The libraries' kernels behind our op names: the meaning of the reference, and no promise."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from deepinfer.kernels.dispatch import select_ops

_SCRIPT = """
import json, os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from deepinfer.kernels.dispatch import select_ops

ours, plain = select_ops("library", bf16=True), select_ops("reference", bf16=True)
draw = torch.Generator().manual_seed(1)
half = lambda *shape: torch.randn(*shape, generator=draw).bfloat16().float()
x, weight, grouped, gain = half(5, 64), half(24, 64), half(2, 24, 32), half(64)
pairs = {
    "linear": [ops.linear(x, ops.pack_linear(weight)) for ops in (ours, plain)],
    "grouped": [ops.linear(x, ops.pack_linear(grouped)) for ops in (ours, plain)],
    "linear_fp32": [ops.linear_fp32(x, ops.pack_linear(weight)) for ops in (ours, plain)],
    "rms_norm": [ops.rms_norm(x, gain, 1e-6) for ops in (ours, plain)],
    "log_softmax": [ops.log_softmax(x) for ops in (ours, plain)],
}
far = {name: float((a - b).norm() / b.norm()) for name, (a, b) in pairs.items()}
print(json.dumps([far, ours.packing, ours.name]))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_it_means_the_same() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    far, packing, name = json.loads(done.stdout)
    assert packing == "library fast"
    assert name == "library"
    assert {op for op, distance in far.items() if not distance < 5e-3} == set()


def test_it_is_for_a_device() -> None:
    with pytest.raises(ValueError, match=r"no CUDA device|does not run on a CPU"):
        select_ops("library", bf16=True, device="cpu")
