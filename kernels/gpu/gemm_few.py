"""bf16 GEMM for few rows and short sums: weights are on their way before the launch before has ended.

The order of a sum is that of ``gemm`` within one chunk: steps of 16 channels from zero, ascending. A program
asks for its first weights, then waits for the launches before, then asks for the rows (decision 0021). That
is safe since weights are written when a model is loaded, and by no launch that this one may overtake.

Legend: M rows, N outputs, K inputs, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import (
    Ptr,
    after_launches_before,
    ceil_div,
    kernel,
    launch,
    power_of_two,
)

MOST_ROWS = 64
"""Rows for which this is used, at most."""


@dataclass(frozen=True)
class FewTile:
    """A launch shape: outputs and depth of a tile of 16 rows, and warps; moves no bit."""

    outputs: int
    depth: int
    warps: int


@kernel
def _few_kernel(
    weights: Ptr,
    x: Ptr,
    out: Ptr,
    num_rows: int,
    num_outputs: int,
    inputs: int,
    x_stride: int,
    stride: int,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    STEPS: tl.constexpr,
    ROUND: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Tiles [BN, BM] of ``STEPS`` steps; ``weights`` [G, N, K], ``x`` [M, G * K], ``out`` [M, G * N]."""
    own = tl.program_id(2)
    n, m = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    left = weights + (own * num_outputs + n).to(tl.int64)[:, None] * inputs + k[None, :]
    w = tl.load(left, (n < num_outputs)[:, None] & (k < inputs)[None, :], other=0.0)
    if EARLY:
        after_launches_before()
    right = x + m.to(tl.int64)[None, :] * x_stride + own * inputs + k[:, None]
    rows = tl.load(right, (m < num_rows)[None, :] & (k < inputs)[:, None], other=0.0)
    acc = tl.dot(w, rows.to(tl.bfloat16), tl.zeros((BN, BM), tl.float32))
    for step in range(1, STEPS):
        c = step * BK + k
        w = tl.load(left + step * BK, (n < num_outputs)[:, None] & (c < inputs)[None, :], other=0.0)
        rows = tl.load(right + step * BK, (m < num_rows)[None, :] & (c < inputs)[:, None], other=0.0)
        acc = tl.dot(w, rows.to(tl.bfloat16), acc)
    targets = out + m.to(tl.int64)[None, :] * stride + own * num_outputs + n[:, None]
    inside = (n < num_outputs)[:, None] & (m < num_rows)[None, :]
    tl.store(targets, rounded(acc, ROUND).to(out.dtype.element_ty), inside)


def gemm_few(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, tile: FewTile, bf16: bool) -> torch.Tensor:
    """``x`` [M, G * K] times ``w`` [G, N, K] or [N, K] into ``out`` [M, G * N]; see ``gemm.gemm``.

    Args:
        x: bfloat16, or float32 that is rounded to it on the way; rows contiguous.
        w: bfloat16, contiguous; one chunk.
        out: rows contiguous.
        tile: moves no bit.
        bf16: whether a float32 ``out`` gets values rounded to bfloat16.
    """
    groups, (outputs, inputs) = (w.shape[0] if w.ndim == 3 else 1), w.shape[-2:]
    depth = min(tile.depth, max(16, power_of_two(inputs)))
    launch(
        _few_kernel,
        (ceil_div(outputs, tile.outputs), ceil_div(len(x), 16), groups),
        *(w, x, out, len(x), outputs, inputs, x.stride(0), out.stride(0)),
        num_warps=tile.warps,
        num_stages=3,
        BN=tile.outputs,
        BM=16,
        BK=depth,
        STEPS=ceil_div(inputs, depth),
        ROUND=bf16,
    )
    return out
