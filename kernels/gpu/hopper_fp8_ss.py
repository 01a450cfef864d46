"""Products of a few rows with FP8 weights for Hopper chips: codes are decoded beside the matrix unit.

A program multiplies 16 to 128 outputs with up to 128 rows, in steps whose words and rows are copied and
decoded ahead (``hopper_fp8_ss_groups.py``). Where outputs are few, tiles are small: more programs share the
reading, and the matrix unit, which has nothing else to do, multiplies more than is looked at.

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
from deepinfer.kernels.gpu.hopper_fp8_ss_groups import BLOCK, PLAIN, PLANE, ask, decode, multiply
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
    T: gl.constexpr,
    BM: gl.constexpr,
    Q: gl.constexpr,
    STAGES: gl.constexpr,
    R: gl.constexpr,
    MULTIPLYING: gl.constexpr,
    DECODING: gl.constexpr,
    D: gl.constexpr,
    REGISTERS: gl.constexpr,
    CHUNKS: gl.constexpr,
    PARTS: gl.constexpr,
    PAIRS: gl.constexpr,
    STEPS: gl.constexpr,
    ROUND: gl.constexpr,
) -> None:
    """MULTIPLYING, DECODING: warps. REGISTERS: of a thread that decodes. STEPS: of a chunk, 0 if alone."""
    tile, part, own = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    n0, m0, first = tile // row_tiles * T, tile % row_tiles * BM, part * chunk
    steps = CHUNKS // PARTS * chunk // (64 * Q)
    BLOCKS: gl.constexpr = T // 32 if T > 32 else 1
    BEYOND: gl.constexpr = 16 * MULTIPLYING // T - 1
    codes = gl.allocate_shared_memory(gl.int32, [STAGES, Q, T // 2, 32], BLOCK)
    planes = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BM, 64 * Q], PLANE)
    tiles = gl.allocate_shared_memory(gl.bfloat16, [R * Q + BEYOND, T, 64], PLANE)
    powers = gl.allocate_shared_memory(gl.int32, [D, PAIRS, 2 * BLOCKS], PLAIN)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    read = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    used = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [R, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [R, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(read.index(s), count=32 * DECODING)
        mbarrier.init(used.index(s), count=32 * MULTIPLYING)
    for s in gl.static_range(R):
        mbarrier.init(ready.index(s), count=32 * DECODING)
        mbarrier.init(free.index(s), count=32 * MULTIPLYING)
    fence_async_shared()
    held, marks = (codes, planes, tiles, powers), (full, read, used, ready, free)
    begin = (own * depth + first) // 64, n0 // 2, m0, own * depth + first
    ends, sizes, places = (out, partials), (num_rows, num_outputs, stride), (n0, m0, part, own)
    line = (own * num_outputs + n0) // 32, first, depth
    if D == 1:
        gl.warp_specialize(
            [
                (
                    multiply,
                    (ends, sizes, places, held, marks, steps, T, BM, Q, MULTIPLYING, R, STEPS, PARTS, ROUND),
                ),
                (decode, (factors, line, held, marks, steps, T, Q, DECODING, R, 0, 1)),
                (ask, (begin, words, x, held, marks, steps, Q)),
            ],
            [DECODING, 1],
            [REGISTERS, 24],
        )
    elif D == 2:
        gl.warp_specialize(
            [
                (
                    multiply,
                    (ends, sizes, places, held, marks, steps, T, BM, Q, MULTIPLYING, R, STEPS, PARTS, ROUND),
                ),
                (decode, (factors, line, held, marks, steps, T, Q, DECODING, R, 0, 2)),
                (decode, (factors, line, held, marks, steps, T, Q, DECODING, R, 1, 2)),
                (ask, (begin, words, x, held, marks, steps, Q)),
            ],
            [DECODING, DECODING, 1],
            [REGISTERS, REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (
                    multiply,
                    (ends, sizes, places, held, marks, steps, T, BM, Q, MULTIPLYING, R, STEPS, PARTS, ROUND),
                ),
                (decode, (factors, line, held, marks, steps, T, Q, DECODING, R, 0, 3)),
                (decode, (factors, line, held, marks, steps, T, Q, DECODING, R, 1, 3)),
                (decode, (factors, line, held, marks, steps, T, Q, DECODING, R, 2, 3)),
                (ask, (begin, words, x, held, marks, steps, Q)),
            ],
            [DECODING, DECODING, DECODING, 1],
            [REGISTERS, REGISTERS, REGISTERS, 24],
        )


@dataclass(frozen=True)
class Fp8Tile:
    """A launch shape.

    Attributes:
        outputs: of a tile, 16 to 128, a power of two.
        rows: of a tile, 8 to 128, a power of two.
        quarters: of 64 channels of a step.
        stages: steps whose words and rows have a place.
        ahead: steps whose decoded weights have a place.
        decoding: warps of a group that decodes, 4 or 8.
        groups: that decode, one step after the other, 1 to 3.
        registers: of a thread: on average over all warps, and of one that decodes.
        spread: whether chunks have programs of their own, and a second launch adds them.
    """

    outputs: int
    rows: int
    quarters: int
    stages: int
    ahead: int
    decoding: int
    groups: int
    registers: tuple[int, int]
    spread: bool = False


def products(
    x: torch.Tensor,
    w: Fp8Weights,
    out: torch.Tensor,
    chunk: int,
    tile: Fp8Tile,
    workspace: Workspace,
    bf16: bool = False,
    early: bool = False,
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
    groups, outputs, depth = w.words.shape[0], w.words.shape[2], w.words.shape[1] * QUARTER
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
    multiplying = 8 if tile.outputs > 64 else 4
    constants: dict[str, Any] = {
        "T": tile.outputs,
        "BM": tile.rows,
        "Q": tile.quarters,
        "STAGES": tile.stages,
        "R": tile.ahead,
        "MULTIPLYING": multiplying,
        "DECODING": tile.decoding,
        "D": tile.groups,
        "REGISTERS": tile.registers[1],
        "CHUNKS": chunks,
        "PARTS": parts,
        "PAIRS": max(128, power_of_two(depth // QUARTER)),
        "STEPS": chunk // (QUARTER * tile.quarters) if chunks > parts else 0,
        "ROUND": bf16,
        "maxnreg": tile.registers[0],
    }
    warp_launch(
        _products_kernel,
        (outputs // tile.outputs * row_tiles, parts, groups),
        *(words, w.factors, rows, out, workspace.partials, len(x), outputs, depth, chunk, out.stride(0)),
        row_tiles,
        num_warps=multiplying,
        early=early,
        **constants,
    )
    if parts > 1:
        add_parts(workspace, out, parts, bf16)
    return out
