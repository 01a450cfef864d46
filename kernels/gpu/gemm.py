"""bf16 GEMM for profile fast: a row's sum has one order, whatever the number of rows.

``out[m, n] = sum over k of x[m, k] * w[n, k]``: bfloat16 operands, float32 sums. What fixes the order of a
sum is ``chunk``, a function of (N, K) alone: the products of one chunk of k are added by the tensor cores in
ascending steps of 16 from zero, and the chunks are added from zero in ascending order. A tile may compute all
chunks one after the other, or one program per chunk may write its part for a later sum in the same order;
both give the same bits. Tile sizes, warps and stages move no product to another step. That equal steps give
equal bits for every instruction shape is a fact about the chip, measured by ``benchmarks/gpu_gemm.py``.

The weight is always the left operand of the matrix instruction (64 rows of it at a time), and tokens the
right one, which may be as few as 16: small batches waste little, and no bucket changes the operand's side.

Legend: M rows, N outputs, K inputs, S = ceil(K / chunk) chunks, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
)

_GROUP = 8
_REDUCED = 512

IN_LOOP, BY_LAST, BY_SECOND = 0, 1, 2
"""Who adds the chunks: the tile's only program, its last one to finish, or a second launch."""


@dataclass(frozen=True)
class Tile:
    """A launch shape: outputs, rows and depth of a tile, stages of loads in flight, warps, way of sums."""

    outputs: int
    rows: int
    depth: int
    stages: int
    warps: int
    way: int = IN_LOOP


@dataclass(frozen=True)
class Workspace:
    """Scratch shared by launches of one stream: partial sums, and a zero counter for every tile."""

    partials: torch.Tensor
    counters: torch.Tensor

    @staticmethod
    def on(place: torch.device, values: int = 1 << 25, tiles: int = 1 << 16) -> Workspace:
        """Room for ``values`` float32 partial sums and ``tiles`` tiles."""
        zeros = torch.zeros(tiles, dtype=torch.int32, device=place)
        return Workspace(torch.empty(values, dtype=torch.float32, device=place), zeros)


@device
def _step(w: Block, x: Block, n0: Block, m0: Block, x0: Block, k: int, acc: Block) -> Block:
    """``acc`` plus the products of one step of loads, k ascending; rows begin at channel ``x0``."""
    return tl.dot(w.load([n0, k]), x.load([m0, x0 + k]).to(tl.bfloat16).T, acc)


@kernel
def _gemm_kernel(
    w: Ptr,
    x: Ptr,
    out: Ptr,
    partials: Ptr,
    counters: Ptr,
    num_rows: int,
    num_outputs: int,
    stride: int,
    chunk: int,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    CHUNKS: tl.constexpr,
    WAY: tl.constexpr,
    GROUP: tl.constexpr,
    ROUND: tl.constexpr,
    GROUPS: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row_tiles, column_tiles = tl.cdiv(num_rows, BM), tl.cdiv(num_outputs, BN)
    tile, part = tl.program_id(0), tl.program_id(1)
    # runs of GROUP column tiles share their rows, so that the second-level cache serves both operands
    per_group = GROUP * row_tiles
    first_column = tile // per_group * GROUP
    wide = min(column_tiles - first_column, GROUP)
    n0 = (first_column + tile % per_group % wide) * BN
    m0 = (tile % per_group // wide) * BM
    x0, w0 = 0, n0
    if GROUPS > 1:
        own = tl.program_id(2)
        x0, w0 = own * CHUNKS * chunk, n0 + own * num_outputs
        out += own * num_outputs
        counters += own * row_tiles * column_tiles
        partials += tl.cast(own, tl.int64) * CHUNKS * num_rows * num_outputs
    total = tl.zeros((BN, BM), tl.float32)
    if WAY == 0:
        if CHUNKS == 1:
            for k in range(0, chunk, BK):
                total = _step(w, x, w0, m0, x0, k, total)
        else:
            for s in range(0, CHUNKS):
                acc = tl.zeros((BN, BM), tl.float32)
                for k in range(s * chunk, (s + 1) * chunk, BK):
                    acc = _step(w, x, w0, m0, x0, k, acc)
                total = total + acc
    else:
        for k in range(part * chunk, (part + 1) * chunk, BK):
            total = _step(w, x, w0, m0, x0, k, total)
    n, m = n0 + tl.arange(0, BN), m0 + tl.arange(0, BM)
    inside = (n < num_outputs)[:, None] & (m < num_rows)[None, :]
    places = m.to(tl.int64)[None, :] * num_outputs + n[:, None]
    targets = out + m.to(tl.int64)[None, :] * stride + n[:, None]
    if WAY == 0:
        tl.store(targets, rounded(total, ROUND).to(out.dtype.element_ty), inside)
    else:
        size = tl.cast(num_rows, tl.int64) * num_outputs
        tl.store(partials + part * size + places, total, inside)
        if WAY == 1:
            tl.debug_barrier()  # every thread's part is written before the count tells of it
            # an integer: it decides which program adds; what is added, and in which order, is the loop below
            if tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == CHUNKS - 1:
                total = tl.zeros((BN, BM), tl.float32)
                for s in tl.static_range(CHUNKS):
                    total = total + tl.load(
                        partials + s * size + places, inside, other=0.0, cache_modifier=".cg"
                    )
                tl.store(targets, rounded(total, ROUND).to(out.dtype.element_ty), inside)
                tl.store(counters + tile, 0)


@kernel
def _reduce_kernel(
    partials: Ptr,
    out: Ptr,
    size: int,
    num_outputs: tl.constexpr,
    stride: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUND: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for s in tl.static_range(CHUNKS):
        total = total + tl.load(partials + s * size + i, i < size, other=0.0)
    target = out + (i if num_outputs == stride else i // num_outputs * stride + i % num_outputs)
    tl.store(target, rounded(total, ROUND).to(out.dtype.element_ty), i < size)


def gemm(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    chunk: int,
    tile: Tile,
    workspace: Workspace,
    bf16: bool = False,
) -> torch.Tensor:
    """``x`` [M, K] times ``w`` [N, K] into ``out`` [M, N], bfloat16 or float32; returns it.

    Weights [G, N, K] multiply the groups of ``x`` [M, G * K] into those of ``out`` [M, G * N].

    Args:
        x: bfloat16, or float32 that is rounded to it on the way; rows contiguous, K a multiple of 8.
        w: bfloat16 with contiguous rows.
        out: rows contiguous.
        chunk: k values of a chunk, a multiple of 128; depends on (N, K) alone. Groups are whole chunks.
        tile: moves no bit; no second launch for groups.
        workspace: room for S * M * G * N partial sums unless the way is ``IN_LOOP``.
        bf16: whether a float32 ``out`` gets values rounded to bfloat16.

    Raises:
        ValueError: the workspace is too small, the chunk is no multiple of 128, or chunk or tile are none for
            groups.
    """
    groups = w.shape[0] if w.ndim == 3 else 1
    left = w.flatten(0, -2)
    num_rows, depth, num_outputs = len(x), x.shape[1] // groups, left.shape[0] // groups
    chunks = ceil_div(depth, chunk)
    way = tile.way if chunks > 1 else IN_LOOP
    tiles = ceil_div(num_rows, tile.rows) * ceil_div(num_outputs, tile.outputs)
    if chunk % 128:
        raise ValueError(f"gemm: chunk {chunk} is no multiple of 128")
    if groups > 1 and (depth % chunk or way == BY_SECOND):
        raise ValueError(f"gemm: groups of {depth} in chunks of {chunk} by way {tile.way}; take one by one")
    if way != IN_LOOP and (
        chunks * out.numel() > workspace.partials.numel() or groups * tiles > len(workspace.counters)
    ):
        raise ValueError(f"gemm: {chunks} chunks of {list(out.shape)} do not fit the workspace")
    weights = TensorDescriptor.from_tensor(left, [tile.outputs, tile.depth])
    rows = TensorDescriptor.from_tensor(x, [tile.rows, tile.depth])
    launch(
        _gemm_kernel,
        (tiles, 1 if way == IN_LOOP else chunks, groups),
        *(weights, rows, out, workspace.partials, workspace.counters),
        *(num_rows, num_outputs, out.stride(0), chunk),
        num_warps=tile.warps,
        num_stages=tile.stages,
        BN=tile.outputs,
        BM=tile.rows,
        BK=tile.depth,
        CHUNKS=chunks,
        WAY=way,
        GROUP=_GROUP,
        ROUND=bf16,
        GROUPS=groups,
    )
    if way == BY_SECOND:
        add_parts(workspace, out, chunks, bf16)
    return out


def add_parts(workspace: Workspace, out: torch.Tensor, chunks: int, bf16: bool) -> None:
    """``out`` [M, N] from the sums of its chunks, float32 [S, M, N], in ascending order."""
    grid = (ceil_div(out.numel(), _REDUCED),)
    arguments = (workspace.partials, out, out.numel(), out.shape[1], out.stride(0))
    launch(_reduce_kernel, grid, *arguments, CHUNKS=chunks, BLOCK=_REDUCED, ROUND=bf16)
