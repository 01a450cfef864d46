"""Grouped products of routed experts on MXFP4 weights, profile fast: decoded in registers, summed by tensor
cores.

The weight is the left operand, decoded between shared memory and the matrix unit; rows are the right one,
so a tile may hold as few as 16. Sums run over ascending blocks of 64 channels and, within a block, over
codes 0 to 3: a function of K alone. Tiles move no bit; ``benchmarks/gpu_layers.py`` checks it on the
device.

Legend: T rows, P pairs of row and expert, D model width, I inner width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import greater, lesser, rounded
from deepinfer.kernels.gpu.expert_groups import Tiles
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
)
from deepinfer.kernels.gpu.mxfp4_weights import BLOCK, Mxfp4Weights, codes_of, multipliers, step_channels


@dataclass(frozen=True)
class ExpertTile:
    """A launch shape: outputs and pairs of a tile, channels of a step, stages of loads in flight, warps."""

    outputs: int
    pairs: int
    depth: int
    stages: int
    warps: int


@device
def fast_silu(x: Block) -> Block:
    """``x / (1 + exp(-x))`` with the chip's own exponential and division: one value in, one out, no sum."""
    return x / (1.0 + tl.exp(-x))


@device
def _step(
    acc: Block,
    words: Block,
    scales_low: Block,
    scales_high: Block,
    x0: Block,
    x1: Block,
    x2: Block,
    x3: Block,
) -> Block:
    """``acc`` [N, M] plus one run of channels: words [N, X], rows [2 X, M] of the four codes."""
    low, high = multipliers(scales_low), multipliers(scales_high)
    acc = tl.dot(codes_of(words, low, 0), x0, acc)
    acc = tl.dot(codes_of(words, low, 1), x1, acc)
    acc = tl.dot(codes_of(words, high, 2), x2, acc)
    return tl.dot(codes_of(words, high, 3), x3, acc)


@kernel
def _inner_kernel(
    x: Ptr,
    order: Ptr,
    expert_of: Ptr,
    first_of: Ptr,
    last_of: Ptr,
    shares: Ptr,
    gate: Ptr,
    gate_scales: Ptr,
    up: Ptr,
    up_scales: Ptr,
    out: Ptr,
    limit: float,
    num_experts: int,
    per_row: int,
    width: int,
    inner: int,
    padded: int,
    DEPTH: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    CLAMP: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """``out[pair]`` [P, I] = ``silu(x gate) * (x up) * share``."""
    if EARLY:
        after_launches_before()
    columns = tl.cdiv(padded, BN)
    tile, n0 = tl.program_id(0) // columns, tl.program_id(0) % columns * BN
    expert = tl.load(expert_of + tile)
    if expert < num_experts:
        i = tl.load(first_of + tile) + tl.arange(0, BM)
        inside = i < tl.load(last_of + tile)
        pairs = tl.load(order + i, inside, other=0)
        rows = x + (pairs // per_row)[None, :] * width + step_channels(BK)[:, None]
        within = tl.broadcast_to(inside[None, :], (BK // 4, BM))
        n = tl.minimum(n0 + tl.arange(0, BN), inner - 1)  # outputs past the end repeat the last one, unstored
        word = (tl.cast(expert, tl.int64) * inner + n)[:, None] * (DEPTH // 8) + tl.arange(0, BK // 8)[
            None, :
        ]
        group = tl.cast(expert, tl.int64) * (DEPTH // 32) * inner + n[:, None]
        group += (2 * tl.arange(0, BK // 64) * inner)[None, :]
        g, u = tl.zeros((BN, BM), tl.float32), tl.zeros((BN, BM), tl.float32)
        for _ in range(0, DEPTH, BK):
            x0 = tl.load(rows, within, other=0.0).to(tl.bfloat16)
            x1 = tl.load(rows + 16, within, other=0.0).to(tl.bfloat16)
            x2 = tl.load(rows + 32, within, other=0.0).to(tl.bfloat16)
            x3 = tl.load(rows + 48, within, other=0.0).to(tl.bfloat16)
            low, high = tl.load(gate_scales + group), tl.load(gate_scales + group + inner)
            g = _step(g, tl.load(gate + word), low, high, x0, x1, x2, x3)
            low, high = tl.load(up_scales + group), tl.load(up_scales + group + inner)
            u = _step(u, tl.load(up + word), low, high, x0, x1, x2, x3)
            rows += BK
            word += BK // 8
            group += BK // 32 * inner
        g, u = rounded(g, True), rounded(u, True)
        if CLAMP:
            g, u = lesser(g, limit), greater(lesser(u, limit), -limit)
        h = fast_silu(g) * u * tl.load(shares + pairs, inside, other=0.0)[None, :]
        n = n0 + tl.arange(0, BN)
        places = out + pairs[None, :] * padded + n[:, None]
        h = tl.where((n < inner)[:, None], h, 0.0)
        tl.store(places, h.to(tl.bfloat16), (n < padded)[:, None] & inside[None, :])


@kernel
def _outer_kernel(
    h: Ptr,
    order: Ptr,
    expert_of: Ptr,
    first_of: Ptr,
    last_of: Ptr,
    down: Ptr,
    down_scales: Ptr,
    out: Ptr,
    num_experts: int,
    width: int,
    inner: int,
    DEPTH: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """``out[pair]`` [P, D] = ``h[pair] down``."""
    if EARLY:
        after_launches_before()
    columns = tl.cdiv(width, BN)
    tile, n0 = tl.program_id(0) // columns, tl.program_id(0) % columns * BN
    expert = tl.load(expert_of + tile)
    if expert < num_experts:
        i = tl.load(first_of + tile) + tl.arange(0, BM)
        inside = i < tl.load(last_of + tile)
        pairs = tl.load(order + i, inside, other=0)
        rows = h + pairs[None, :] * inner + step_channels(BK)[:, None]
        within = tl.broadcast_to(inside[None, :], (BK // 4, BM))
        n = tl.minimum(n0 + tl.arange(0, BN), width - 1)
        word = (tl.cast(expert, tl.int64) * width + n)[:, None] * (DEPTH // 8) + tl.arange(0, BK // 8)[
            None, :
        ]
        group = tl.cast(expert, tl.int64) * (DEPTH // 32) * width + n[:, None]
        group += (2 * tl.arange(0, BK // 64) * width)[None, :]
        acc = tl.zeros((BN, BM), tl.float32)
        for _ in range(0, DEPTH, BK):
            x0, x1 = tl.load(rows, within, other=0.0), tl.load(rows + 16, within, other=0.0)
            x2, x3 = tl.load(rows + 32, within, other=0.0), tl.load(rows + 48, within, other=0.0)
            low, high = tl.load(down_scales + group), tl.load(down_scales + group + width)
            acc = _step(acc, tl.load(down + word), low, high, x0, x1, x2, x3)
            rows += BK
            word += BK // 8
            group += BK // 32 * width
        n = n0 + tl.arange(0, BN)
        places = out + pairs[None, :] * width + n[:, None]
        tl.store(places, acc.to(tl.bfloat16), (n < width)[:, None] & inside[None, :])


def inner_products(
    x: torch.Tensor,
    tiles: Tiles,
    shares: torch.Tensor,
    gate: Mxfp4Weights,
    up: Mxfp4Weights,
    limit: float,
    tile: ExpertTile,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gate, up and activation of every pair: ``x`` [T, D] of bfloat16 values, ``shares`` float32 [T, k] ->
    bfloat16 [P, I'].

    D is a multiple of 64; I' is I filled up with zeros to one. ``tiles`` must be planned for
    ``tile.pairs``; pairs that no tile holds are not written.
    """
    num_experts, inner, _ = gate.words.shape
    padded = ceil_div(inner, BLOCK) * BLOCK
    out = x.new_empty(shares.numel(), padded, dtype=torch.bfloat16) if out is None else out
    launch(
        _inner_kernel,
        (len(tiles.expert) * ceil_div(padded, tile.outputs),),
        *(x, tiles.order, tiles.expert, tiles.first, tiles.last, shares, gate.words, gate.scales),
        *(up.words, up.scales, out, limit, num_experts, shares.shape[1], x.shape[1], inner, padded),
        num_warps=tile.warps,
        num_stages=tile.stages,
        DEPTH=x.shape[1],
        BN=tile.outputs,
        BM=tile.pairs,
        BK=tile.depth,
        CLAMP=limit > 0,
    )
    return out


def outer_products(
    h: torch.Tensor, tiles: Tiles, down: Mxfp4Weights, tile: ExpertTile, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The down product of every pair: ``h`` bfloat16 [P, I'] -> bfloat16 [P, D]."""
    num_experts, width, _ = down.words.shape
    out = h.new_empty(len(h), width) if out is None else out
    launch(
        _outer_kernel,
        (len(tiles.expert) * ceil_div(width, tile.outputs),),
        *(h, tiles.order, tiles.expert, tiles.first, tiles.last, down.words, down.scales, out),
        *(num_experts, width, h.shape[1]),
        num_warps=tile.warps,
        num_stages=tile.stages,
        DEPTH=h.shape[1],
        BN=tile.outputs,
        BM=tile.pairs,
        BK=tile.depth,
    )
    return out


@kernel
def _combine_kernel(
    y: Ptr,
    shared: Ptr,
    out: Ptr,
    width: int,
    PER_ROW: tl.constexpr,
    SHARED: tl.constexpr,
    BD: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """``((0 + y_0) + y_1 ...) + shared``; the pairs of a row lie in ascending expert order."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    total = tl.zeros((BD,), tl.float32)
    for i in tl.static_range(PER_ROW):
        total = total + tl.load(y + (row * PER_ROW + i) * width + d, d < width, other=0.0).to(tl.float32)
    if SHARED:
        total = total + tl.load(shared + row * width + d, d < width, other=0.0).to(tl.float32)
    tl.store(out + row * width + d, rounded(total, True).to(out.dtype.element_ty), d < width)


def combine(
    y: torch.Tensor, shared: torch.Tensor | None, per_row: int, kind: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """Sum of a row's pairs, ascending, plus the shared expert: [P, D], [T, D] or None -> [T, D] as
    ``kind``.
    """
    num_rows, width = len(y) // per_row, y.shape[1]
    out = torch.empty(num_rows, width, dtype=kind, device=y.device)
    common = y if shared is None else shared
    constants = {"PER_ROW": per_row, "SHARED": shared is not None, "BD": 1024}
    launch(_combine_kernel, (num_rows, ceil_div(width, 1024)), y, common, out, width, **constants)
    return out
