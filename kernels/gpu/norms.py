"""RMSNorm, profile strict: the mean square is one fma chain over ascending channels; a lane holds a row."""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded, rsqrt
from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch

LANES = 32
_WIDTH = 128


@device
def square_sums(starts: Ptr, inside: Block, width: int, LANES: tl.constexpr) -> Block:
    """Chains of ``x_d * x_d`` over ascending d of rows that begin at ``starts`` [LANES]."""
    total = tl.zeros((LANES,), tl.float32)
    for d in range(0, width):
        value = tl.load(starts + d, inside, other=0.0)
        total = tl.fma(value, value, total)
    return total


@kernel
def _norm_kernel(
    x: Ptr,
    gain: Ptr,
    out: Ptr,
    eps: float,
    num_rows: int,
    width: int,
    LANES: tl.constexpr,
    BD: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    rows = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = rows < num_rows
    starts = rows * width
    total = square_sums(x + starts, inside, width, LANES)
    scale = rsqrt(tl.div_rn(total, tl.zeros((LANES,), tl.float32) + width) + eps)
    for first in range(0, width, BD):
        d = first + tl.arange(0, BD)
        within = inside[:, None] & (d < width)[None, :]
        places = starts[:, None] + d[None, :]
        weights = tl.load(gain + d, d < width, other=0.0)
        y = tl.load(x + places, within, other=0.0) * scale[:, None] * weights[None, :]
        tl.store(out + places, rounded(y, BF16), within)


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float, bf16: bool) -> torch.Tensor:
    """``x * rsqrt(mean(x**2) + eps) * gain``: float32 [T, D] -> float32 [T, D]."""
    rows = x.contiguous()
    out = torch.empty_like(rows)
    num_rows, width = rows.shape
    grid = (ceil_div(num_rows, LANES),)
    constants = {"LANES": LANES, "BD": _WIDTH, "BF16": bf16}
    launch(_norm_kernel, grid, rows, gain.contiguous(), out, eps, num_rows, width, num_warps=1, **constants)
    return out
