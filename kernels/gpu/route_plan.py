"""Router and plan of expert tiles in one launch for few rows: ``router``, then ``expert_plan``.

One program chooses the experts of all rows in one tile, and lays out its pairs from there. Weights come from
the router's own function; the rest is integers, and where a pair lands moves no bit.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.expert_groups import Tiles
from deepinfer.kernels.gpu.expert_plan import write_tiles
from deepinfer.kernels.gpu.launching import (
    Ptr,
    after_launches_before,
    ceil_div,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.gpu.router import chosen_of

_MOST = 512
"""Rows times experts of the tile, powers of two each."""
_WARP = 128
"""The same, up to which one warp has it: nobody waits for another."""


@kernel
def _route_plan_kernel(
    logits: Ptr,
    bias: Ptr,
    ids: Ptr,
    weights: Ptr,
    order: Ptr,
    plan: Ptr,
    factor: float,
    num_rows: int,
    num_experts: int,
    size: int,
    num_tiles: int,
    TOP: tl.constexpr,
    NORMALISE: tl.constexpr,
    ROWS: tl.constexpr,
    BE: tl.constexpr,
    TILES: tl.constexpr,
    FP64: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    rows, e = tl.arange(0, ROWS).to(tl.int64), tl.arange(0, BE)
    taken, rank, share = chosen_of(
        *(logits, bias, rows, factor, num_rows, num_experts, TOP, NORMALISE, ROWS, BE, FP64)
    )
    pairs = rows[:, None] * TOP + rank - 1
    tl.store(ids + pairs, tl.broadcast_to(e[None, :], (ROWS, BE)).to(tl.int64), taken)
    tl.store(weights + pairs, share, taken)
    hits = taken.to(tl.int32)
    counts = tl.sum(hits, axis=0)
    starts = tl.cumsum(counts, axis=0) - counts
    tl.store(order + starts[None, :] + tl.cumsum(hits, axis=0) - hits, pairs, taken)
    tiles = (counts + size - 1) // size
    write_tiles(plan, starts, counts, e * 0, tiles, size, num_tiles, num_experts, TILES, BE)


def fits(num_rows: int, num_experts: int) -> bool:
    """Whether one tile holds them."""
    return num_rows > 0 and power_of_two(num_rows) * power_of_two(num_experts) <= _MOST


def route_and_plan(
    logits: torch.Tensor,
    bias: torch.Tensor,
    num_selected: int,
    normalise: bool,
    factor: float,
    size: int,
    fp64: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, Tiles]:
    """``router.route`` of float32 [T, E], and ``expert_groups.plan_tiles`` of its ids, ``size`` a tile."""
    source = logits.contiguous()
    (num_rows, num_experts), place = source.shape, source.device
    ids = torch.empty(num_rows, num_selected, dtype=torch.int64, device=place)
    weights = source.new_empty(num_rows, num_selected)
    order = torch.empty(ids.numel(), dtype=torch.int64, device=place)
    num_tiles = ceil_div(ids.numel(), size) + min(num_experts, ids.numel())
    plan = torch.empty(3, num_tiles, dtype=torch.int32, device=place)
    block_rows, block_experts = power_of_two(num_rows), power_of_two(num_experts)
    launch(
        _route_plan_kernel,
        (1,),
        *(source, bias, ids, weights, order, plan, factor, num_rows, num_experts, size, num_tiles),
        num_warps=1 if block_rows * block_experts <= _WARP else 4,
        TOP=num_selected,
        NORMALISE=normalise,
        ROWS=block_rows,
        BE=block_experts,
        TILES=power_of_two(num_tiles),
        FP64=fp64,
    )
    return ids, weights, Tiles(order, *plan)
