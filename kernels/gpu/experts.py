"""Mixture of experts, profile strict: pairs of row and expert, grouped so that a tile has one expert.

Grouping is integer work in torch on the device, without a synchronisation: pairs are sorted by expert, every
expert gets whole tiles, and the grid is as large as the worst split needs; programs past the last tile leave.
Where a pair lands moves no bit, since its products are its own chains.

Legend: T rows, D model width, I inner width, E experts, k experts a token, P = T * k pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import greater, lesser, rounded, silu
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch
from deepinfer.kernels.gpu.linear import smallest

_ROWS, _COLUMNS, _DEPTH = 16, 32, 32


@dataclass(frozen=True)
class PackedExperts:
    """Turned weights: ``gate`` and ``up`` [E, D, I], ``down`` [E, I, D]; bfloat16 where exact."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


def pack_experts(
    num_experts: int,
    load: Callable[[int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    place: torch.device,
) -> PackedExperts:
    """Pack experts one at a time; ``load(e)`` gives gate [I, D], up [I, D] and down [D, I] of expert e."""
    if num_experts < 1:
        raise ValueError("pack_experts: a layer needs at least one expert")
    parts: tuple[list[torch.Tensor], ...] = ([], [], [])
    for e in range(num_experts):
        for part, weight in zip(parts, load(e), strict=True):
            part.append(smallest(weight.detach().to(place, torch.float32).T.contiguous()))
    return PackedExperts(*(_stacked(part) for part in parts))


def _stacked(part: list[torch.Tensor]) -> torch.Tensor:
    half = all(weight.dtype == torch.bfloat16 for weight in part)
    return torch.stack(part if half else [weight.to(torch.float32) for weight in part])


@dataclass(frozen=True)
class _Tiles:
    """Pairs by expert: ``order`` [P] pair numbers, ``starts`` [E + 1] in it, ``ends`` [E] running tiles."""

    order: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    count: int


def _tiles(ids: torch.Tensor, num_experts: int) -> _Tiles:
    sorted_ids, order = ids.flatten().sort(stable=True)
    edges = torch.arange(num_experts + 1, device=ids.device)
    starts = torch.searchsorted(sorted_ids, edges)
    ends = torch.cumsum((starts[1:] - starts[:-1] + _ROWS - 1) // _ROWS, 0)
    pairs = ids.numel()
    return _Tiles(order, starts, ends, ceil_div(pairs, _ROWS) + min(num_experts, pairs))


@kernel
def _inner_kernel(
    x: Ptr,
    order: Ptr,
    starts: Ptr,
    ends: Ptr,
    shares: Ptr,
    gate: Ptr,
    up: Ptr,
    out: Ptr,
    limit: float,
    num_experts: int,
    per_row: int,
    width: int,
    inner: int,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    CLAMP: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    """``out[pair]`` [P, I] = ``silu(x gate) * (x up) * share``."""
    tile, expert, first_tile = tl.program_id(0), 0, tl.program_id(0) * 0
    for e in range(0, num_experts):
        end = tl.load(ends + e).to(tl.int32)
        past = end <= tile
        expert += past.to(tl.int32)
        first_tile = tl.where(past, end, first_tile)
    if expert < num_experts:
        i = tl.load(starts + expert) + (tile - first_tile) * BM + tl.arange(0, BM)
        inside = i < tl.load(starts + expert + 1)
        pairs = tl.load(order + i, inside, other=0)
        columns = tl.program_id(1) * BN + tl.arange(0, BN)
        sources = x + (pairs // per_row)[:, None] * width
        weights = tl.cast(expert, tl.int64) * width * inner + columns[None, :]
        g, u = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
        for first in range(0, width, BK):
            k = first + tl.arange(0, BK)
            a = tl.load(sources + k[None, :], inside[:, None] & (k < width)[None, :], other=0.0)
            within = (k < width)[:, None] & (columns < inner)[None, :]
            places = weights + k[:, None] * inner
            wg = tl.load(gate + places, within, other=-0.0).to(tl.float32)
            wu = tl.load(up + places, within, other=-0.0).to(tl.float32)
            g = tl.dot(a, wg, g, input_precision="ieee")
            u = tl.dot(a, wu, u, input_precision="ieee")
        g, u = rounded(g, BF16), rounded(u, BF16)
        if CLAMP:
            g, u = lesser(g, limit), greater(lesser(u, limit), -limit)
        h = silu(g) * u * tl.load(shares + pairs, inside, other=0.0)[:, None]
        within = inside[:, None] & (columns < inner)[None, :]
        tl.store(out + pairs[:, None] * inner + columns[None, :], rounded(h, BF16), within)


@kernel
def _outer_kernel(
    h: Ptr,
    order: Ptr,
    starts: Ptr,
    ends: Ptr,
    down: Ptr,
    out: Ptr,
    num_experts: int,
    width: int,
    inner: int,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    """``out[pair]`` [P, D] = ``h[pair] down``."""
    tile, expert, first_tile = tl.program_id(0), 0, tl.program_id(0) * 0
    for e in range(0, num_experts):
        end = tl.load(ends + e).to(tl.int32)
        past = end <= tile
        expert += past.to(tl.int32)
        first_tile = tl.where(past, end, first_tile)
    if expert < num_experts:
        i = tl.load(starts + expert) + (tile - first_tile) * BM + tl.arange(0, BM)
        inside = i < tl.load(starts + expert + 1)
        pairs = tl.load(order + i, inside, other=0)
        columns = tl.program_id(1) * BN + tl.arange(0, BN)
        weights = down + tl.cast(expert, tl.int64) * width * inner + columns[None, :]
        acc = tl.zeros((BM, BN), tl.float32)
        for first in range(0, inner, BK):
            k = first + tl.arange(0, BK)
            places = h + pairs[:, None] * inner + k[None, :]
            a = tl.load(places, inside[:, None] & (k < inner)[None, :], other=0.0)
            within = (k < inner)[:, None] & (columns < width)[None, :]
            b = tl.load(weights + k[:, None] * width, within, other=-0.0).to(tl.float32)
            acc = tl.dot(a, b, acc, input_precision="ieee")
        within = inside[:, None] & (columns < width)[None, :]
        tl.store(out + pairs[:, None] * width + columns[None, :], rounded(acc, BF16), within)


@kernel
def _combine_kernel(
    routed: Ptr, shared: Ptr, out: Ptr, per_row: int, width: int, BD: tl.constexpr, BF16: tl.constexpr
) -> None:
    """``((0 + y_0) + y_1 ...) + shared``; the pairs of a row lie in ascending expert order."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    total = tl.zeros((BD,), tl.float32)
    for i in range(0, per_row):
        total = total + tl.load(routed + (row * per_row + i) * width + d, d < width, other=0.0)
    total = total + tl.load(shared + row * width + d, d < width, other=0.0)
    tl.store(out + row * width + d, rounded(total, BF16), d < width)


def outputs(
    x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor, experts: PackedExperts, limit: float, bf16: bool
) -> torch.Tensor:
    """float32 [P, D]: every pair's expert applied to its row, weighted."""
    num_experts, width, inner = experts.gate.shape
    tiles, pairs, per_row = _tiles(ids, num_experts), ids.numel(), ids.shape[1]
    h, out = x.new_empty(pairs, inner), x.new_empty(pairs, width)
    shapes = {"BM": _ROWS, "BN": _COLUMNS, "BK": _DEPTH, "BF16": bf16}
    groups = (tiles.order, tiles.starts, tiles.ends)
    launch(
        _inner_kernel,
        (tiles.count, ceil_div(inner, _COLUMNS)),
        *(x, *groups, shares, experts.gate, experts.up, h, limit, num_experts, per_row, width, inner),
        CLAMP=limit > 0,
        **shapes,
    )
    launch(
        _outer_kernel,
        (tiles.count, ceil_div(width, _COLUMNS)),
        *(h, *groups, experts.down, out, num_experts, width, inner),
        **shapes,
    )
    return out


def moe(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    experts: PackedExperts,
    shared: PackedExperts,
    limit: float,
    bf16: bool,
) -> torch.Tensor:
    """float32 [T, D] -> [T, D]: weighted experts of every row, ascending, plus the shared expert.

    Args:
        x: float32 [T, D].
        expert_ids: int64 [T, k], ascending in every row.
        weights: float32 [T, k].
        experts: routed.
        shared: one expert, with weight 1.
        limit: SwiGLU clamp, 0 for none.
        bf16: profile fast.
    """
    rows, width = x.contiguous(), x.shape[1]
    routed = outputs(rows, expert_ids.contiguous(), weights.contiguous(), experts, limit, bf16)
    everyone = torch.zeros(x.shape[0], 1, dtype=torch.int64, device=x.device)
    common = outputs(rows, everyone, torch.ones_like(everyone, dtype=torch.float32), shared, limit, bf16)
    out = torch.empty_like(rows)
    grid = (x.shape[0], ceil_div(width, 256))
    launch(_combine_kernel, grid, routed, common, out, expert_ids.shape[1], width, BD=256, BF16=bf16)
    return out
