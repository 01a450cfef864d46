"""Expert router of both profiles: one program per row, all experts in one tile (model.md section 5.1)."""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.gpu.narrow_log import softplus_by


@device
def chosen_of(
    logits: Ptr,
    bias: Ptr,
    rows: Block,
    factor: float,
    num_rows: int,
    num_experts: int,
    TOP: tl.constexpr,
    NORMALISE: tl.constexpr,
    ROWS: tl.constexpr,
    BE: tl.constexpr,
    FP64: tl.constexpr,
) -> tuple[Block, Block, Block]:
    """Of ``rows`` int64 [ROWS]: whether each expert is chosen, how many are up to it, and its weight.

    All [ROWS, BE]; none is chosen past the last row. A sum picks one score each time, so that it is exact.
    """
    e = tl.arange(0, BE)[None, :]
    inside = (rows < num_rows)[:, None] & (e < num_experts)
    scores = tl.sqrt_rn(
        softplus_by(tl.load(logits + rows[:, None] * num_experts + e, inside, other=0.0), FP64)
    )
    biased = scores + tl.load(bias + e, e < num_experts, other=0.0)
    left = tl.where(inside, biased, float("-inf"))
    taken = inside & (e < 0)
    for _ in tl.static_range(TOP):
        best = tl.max(left, axis=1)[:, None]
        free = inside & (taken == 0)
        winner = tl.min(tl.where(free & (left == best), e, BE), axis=1)[:, None]
        taken = taken | (e == winner)
        left = tl.where(e == winner, float("-inf"), left)
    rank = tl.cumsum(taken.to(tl.int32), axis=1)
    total = tl.zeros((ROWS,), tl.float32)
    for i in tl.static_range(TOP):
        here = taken & (rank == i + 1)
        total = total + tl.sum(tl.where(here, scores, 0.0), axis=1)
    total = total + 1e-20
    share = tl.div_rn(scores, tl.zeros((ROWS, BE), tl.float32) + total[:, None]) if NORMALISE else scores
    return taken, rank, share * factor


@kernel
def _route_kernel(
    logits: Ptr,
    bias: Ptr,
    ids: Ptr,
    weights: Ptr,
    factor: float,
    num_rows: int,
    num_experts: int,
    TOP: tl.constexpr,
    NORMALISE: tl.constexpr,
    BE: tl.constexpr,
    FP64: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    rows, e = tl.program_id(0).to(tl.int64) + tl.arange(0, 1), tl.arange(0, BE)[None, :]
    taken, rank, share = chosen_of(
        *(logits, bias, rows, factor, num_rows, num_experts, TOP, NORMALISE, 1, BE, FP64)
    )
    places = rows[:, None] * TOP + rank - 1
    tl.store(ids + places, e.to(tl.int64), taken)
    tl.store(weights + places, share, taken)


def route(
    logits: torch.Tensor,
    bias: torch.Tensor,
    num_selected: int,
    normalise: bool,
    factor: float,
    fp64: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [T, E] -> ids int64 [T, k], ascending, and weights float32 [T, k]; ties: the lower id.

    ``fp64``: whether the chip computes in float64; the bits are the same.
    """
    source = logits.contiguous()
    num_rows, num_experts = source.shape
    ids = torch.empty(num_rows, num_selected, dtype=torch.int64, device=source.device)
    weights = source.new_empty(num_rows, num_selected)
    launch(
        _route_kernel,
        (num_rows,),
        *(source, bias, ids, weights, factor, num_rows, num_experts),
        TOP=num_selected,
        NORMALISE=normalise,
        BE=power_of_two(num_experts),
        FP64=fp64,
    )
    return ids, weights
