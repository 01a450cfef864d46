"""bf16 GEMM with tiles of two parts a side: 160 or 192 rows where a power of two would leave
multiprocessors idle.

A launch is a whole number of waves of tiles, so what counts for a few hundred to a few thousand rows is how
well the tiles fill the last wave. A tile here is the product of one or two runs of outputs and one or two
runs of rows (128 + 32, say), which share their loads. Every product still joins its sum in the same step of
16 as in ``gemm.py`` with one chunk, so the bits are those of that kernel.

Legend: M rows, N outputs, K inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch

_GROUP = 8


@dataclass(frozen=True)
class WideTile:
    """A launch shape.

    Attributes:
        outputs, rows: lengths of the two runs of a side, powers of two; the second may be 0.
        depth: k values of a step of loads.
        stages: steps of loads in flight.
        warps: of a program.
        rows_left: whether the rows are the left operand of the matrix instruction, instead of the weight.
    """

    outputs: tuple[int, int]
    rows: tuple[int, int]
    depth: int
    stages: int
    warps: int
    rows_left: bool = False


@device
def _multiply(w: Block, x: Block, acc: Block, ROWS_LEFT: tl.constexpr) -> Block:
    """``acc`` plus ``w`` [n, k] times ``x`` [m, k], as [m, n] or [n, m]."""
    return tl.dot(x, w.T, acc) if ROWS_LEFT else tl.dot(w, x.T, acc)


@device
def _store(
    out: Ptr,
    acc: Block,
    m0: Block,
    n0: Block,
    num_rows: int,
    num_outputs: int,
    stride: int,
    ROWS_LEFT: tl.constexpr,
    ROUND: tl.constexpr,
) -> None:
    if ROWS_LEFT:
        m = m0 + tl.arange(0, acc.shape[0])[:, None]
        n = n0 + tl.arange(0, acc.shape[1])[None, :]
    else:
        m = m0 + tl.arange(0, acc.shape[1])[None, :]
        n = n0 + tl.arange(0, acc.shape[0])[:, None]
    places = out + m.to(tl.int64) * stride + n
    tl.store(places, rounded(acc, ROUND).to(out.dtype.element_ty), (m < num_rows) & (n < num_outputs))


@kernel
def _wide_kernel(
    w1: Ptr,
    w2: Ptr,
    x1: Ptr,
    x2: Ptr,
    out: Ptr,
    num_rows: int,
    num_outputs: int,
    depth: int,
    stride: int,
    N1: tl.constexpr,
    N2: tl.constexpr,
    M1: tl.constexpr,
    M2: tl.constexpr,
    BK: tl.constexpr,
    ROWS_LEFT: tl.constexpr,
    GROUP: tl.constexpr,
    ROUND: tl.constexpr,
) -> None:
    row_tiles, column_tiles = tl.cdiv(num_rows, M1 + M2), tl.cdiv(num_outputs, N1 + N2)
    tile = tl.program_id(0)
    # runs of GROUP column tiles share their rows, so that the second-level cache serves both operands
    per_group = GROUP * row_tiles
    first_column = tile // per_group * GROUP
    columns = min(column_tiles - first_column, GROUP)
    n0 = (first_column + tile % per_group % columns) * (N1 + N2)
    m0 = (tile % per_group // columns) * (M1 + M2)
    a11 = tl.zeros((M1, N1) if ROWS_LEFT else (N1, M1), tl.float32)
    if M2 > 0:
        a12 = tl.zeros((M2, N1) if ROWS_LEFT else (N1, M2), tl.float32)
    if N2 > 0:
        a21 = tl.zeros((M1, N2) if ROWS_LEFT else (N2, M1), tl.float32)
        if M2 > 0:
            a22 = tl.zeros((M2, N2) if ROWS_LEFT else (N2, M2), tl.float32)
    for k in range(0, depth, BK):
        wa, xa = w1.load([n0, k]), x1.load([m0, k])
        a11 = _multiply(wa, xa, a11, ROWS_LEFT)
        if M2 > 0:
            xb = x2.load([m0 + M1, k])
            a12 = _multiply(wa, xb, a12, ROWS_LEFT)
        if N2 > 0:
            wb = w2.load([n0 + N1, k])
            a21 = _multiply(wb, xa, a21, ROWS_LEFT)
            if M2 > 0:
                a22 = _multiply(wb, xb, a22, ROWS_LEFT)
    _store(out, a11, m0, n0, num_rows, num_outputs, stride, ROWS_LEFT, ROUND)
    if M2 > 0:
        _store(out, a12, m0 + M1, n0, num_rows, num_outputs, stride, ROWS_LEFT, ROUND)
    if N2 > 0:
        _store(out, a21, m0, n0 + N1, num_rows, num_outputs, stride, ROWS_LEFT, ROUND)
        if M2 > 0:
            _store(out, a22, m0 + M1, n0 + N1, num_rows, num_outputs, stride, ROWS_LEFT, ROUND)


def gemm_wide(
    x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, tile: WideTile, bf16: bool = False
) -> torch.Tensor:
    """``x`` bfloat16 [M, K] times ``w`` bfloat16 [N, K] into ``out`` [M, N], bfloat16 or float32; returns it.

    Rows contiguous, K a multiple of 8; ``bf16`` rounds what a float32 ``out`` gets. The bits are those of
    ``gemm.gemm`` with a chunk of all K.
    """
    (num_rows, depth), num_outputs = x.shape, w.shape[0]
    (n1, n2), (m1, m2) = tile.outputs, tile.rows
    tiles = ceil_div(num_rows, m1 + m2) * ceil_div(num_outputs, n1 + n2)
    weights = [TensorDescriptor.from_tensor(w, [part, tile.depth]) for part in (n1, n2 or n1)]
    rows = [TensorDescriptor.from_tensor(x, [part, tile.depth]) for part in (m1, m2 or m1)]
    launch(
        _wide_kernel,
        (tiles,),
        *(*weights, *rows, out, num_rows, num_outputs, depth, out.stride(0)),
        num_warps=tile.warps,
        num_stages=tile.stages,
        N1=n1,
        N2=n2,
        M1=m1,
        M2=m2,
        BK=tile.depth,
        ROWS_LEFT=tile.rows_left,
        GROUP=_GROUP,
        ROUND=bf16,
    )
    return out
