"""Products of a few rows with FP8 weights for Hopper chips: codes are decoded beside the matrix unit.

A program multiplies 32, 64 or 128 outputs with up to 64 rows. Copies of words, and of rows, run ``stages``
steps ahead; a thread decodes words straight into the registers that the unit reads weights from
(``fp8_weights.py`` has the order), while the unit works on the channels before. Where outputs are few, a tile
of the unit, 64 rows of weights, holds 32: the other half are zeros, and twice as many programs share the
reading.

The order of additions is that of ``gemm.py`` with the same chunk: steps of 16 channels, ascending, and chunks
in ascending order from zero. The device script compares the bits.

Legend: M rows, N outputs, K channels, S chunks, G groups, Q quarters of 64 channels of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from deepinfer.kernels.gpu.fp8_weights import QUARTER, Fp8Weights
from deepinfer.kernels.gpu.gemm import Workspace, add_parts
from deepinfer.kernels.gpu.hopper_fp8_groups import BLOCK, PLAIN, PLANE, ask, multiply
from deepinfer.kernels.gpu.launching import Block, ceil_div, power_of_two
from deepinfer.kernels.gpu.warp_groups import warp_kernel, warp_launch


@warp_kernel
def _products_kernel(
    words: Block,
    factors: Block,
    x: Block,
    out: Block,
    partials: Block,
    num_rows: Block,
    num_outputs: Block,
    depth: Block,
    chunk: Block,
    stride: Block,
    row_tiles: Block,
    W: gl.constexpr,
    RUNS: gl.constexpr,
    BM: gl.constexpr,
    Q: gl.constexpr,
    STAGES: gl.constexpr,
    CHUNKS: gl.constexpr,
    PARTS: gl.constexpr,
    PAIRS: gl.constexpr,
    STEPS: gl.constexpr,
    ROUND: gl.constexpr,
) -> None:
    GROUPS: gl.constexpr = RUNS * W
    tile, part, own = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    n0, m0, first = tile // row_tiles * (8 * GROUPS), tile % row_tiles * BM, part * chunk
    steps = CHUNKS // PARTS * chunk // (64 * Q)
    codes = gl.allocate_shared_memory(gl.int32, [STAGES, Q, 4 * GROUPS, 32], BLOCK)
    planes = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BM, 64 * Q], PLANE)
    powers = gl.allocate_shared_memory(gl.int32, [PAIRS, GROUPS // 2], PLAIN)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=32 * W)
    fence_async_shared()
    held, marks = (codes, planes, powers), (full, empty)
    begin = (own * depth + first) // 64, n0 // 2, m0, own * depth + first
    ends, sizes = (factors, out, partials), (num_rows, num_outputs, depth, stride)
    at = n0, m0, first, part, own
    gl.warp_specialize(
        [
            (multiply, (ends, sizes, at, held, marks, steps, W, RUNS, BM, Q, STEPS, PARTS, ROUND)),
            (ask, (begin, words, x, held, marks, steps, Q)),
        ],
        [1],
        [24],
    )


@dataclass(frozen=True)
class Fp8Tile:
    """A launch shape.

    Attributes:
        warps: that multiply, 4 or 8.
        runs: of eight outputs a warp, 1 or 2: a tile has ``8 * warps * runs`` outputs.
        rows: of a tile, 8 to 64, a power of two.
        quarters: of 64 channels of a step.
        stages: steps that have a place.
        registers: of a thread, on average over all warps.
        spread: whether chunks have programs of their own, and a second launch adds them.
    """

    warps: int
    runs: int
    rows: int
    quarters: int
    stages: int
    registers: int
    spread: bool = False

    @property
    def outputs(self) -> int:
        """Of a tile."""
        return 8 * self.warps * self.runs


def products(
    x: torch.Tensor,
    w: Fp8Weights,
    out: torch.Tensor,
    chunk: int,
    tile: Fp8Tile,
    workspace: Workspace,
    bf16: bool = False,
) -> torch.Tensor:
    """``x`` [M, G * K] times ``w`` into ``out`` [M, G * N], bfloat16 or float32; returns it.

    Args:
        x: bfloat16, rows contiguous.
        w: N a multiple of the tile's outputs, K of its step.
        out: rows contiguous.
        chunk: k values of a chunk, as in ``gemm.gemm``; all K, or a divisor of it and whole steps.
        tile: moves no bit; spread for one group alone.
        workspace: room for S * M * N partial sums if the tile is spread.
        bf16: whether a float32 ``out`` gets values rounded to bfloat16.

    Raises:
        ValueError: shapes that do not fit the tile.
    """
    groups, outputs, depth = w.num_groups, w.num_outputs, w.num_inputs
    chunks = ceil_div(depth, chunk)
    parts = chunks if tile.spread else 1
    if outputs % tile.outputs or depth % chunk or chunk % (QUARTER * tile.quarters):
        raise ValueError(f"FP8 products: [{outputs}, {depth}] in chunks of {chunk} does not fit {tile}")
    if parts > 1 and (groups > 1 or parts * out.numel() > workspace.partials.numel()):
        raise ValueError(f"FP8 products: {parts} parts of {groups} groups, {list(out.shape)}, do not fit")
    blocks = w.words.view(-1, outputs // 2, 32)
    words = TensorDescriptor.from_tensor(blocks, [tile.quarters, tile.outputs // 2, 32], BLOCK.value)
    rows = TensorDescriptor.from_tensor(x, [tile.rows, QUARTER * tile.quarters], PLANE.value)
    row_tiles = ceil_div(len(x), tile.rows)
    constants: dict[str, Any] = {
        "W": tile.warps,
        "RUNS": tile.runs,
        "BM": tile.rows,
        "Q": tile.quarters,
        "STAGES": tile.stages,
        "CHUNKS": chunks,
        "PARTS": parts,
        "PAIRS": max(128, power_of_two(depth // QUARTER)),
        "STEPS": chunk // (QUARTER * tile.quarters) if chunks > parts else 0,
        "ROUND": bf16,
        "maxnreg": tile.registers,
    }
    warp_launch(
        _products_kernel,
        (outputs // tile.outputs * row_tiles, parts, groups),
        *(words, w.factors, rows, out, workspace.partials, len(x), outputs, depth, chunk, out.stride(0)),
        row_tiles,
        num_warps=tile.warps,
        **constants,
    )
    if parts > 1:
        add_parts(workspace, out, parts, bf16)
    return out
