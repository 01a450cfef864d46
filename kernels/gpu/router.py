"""Expert router, profile strict: one program per row, all experts in one tile (model.md section 5.1)."""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, kernel, launch, power_of_two
from deepinfer.kernels.gpu.narrow_log import softplus_by


@kernel
def _route_kernel(
    logits: Ptr,
    bias: Ptr,
    ids: Ptr,
    weights: Ptr,
    factor: float,
    num_experts: int,
    TOP: tl.constexpr,
    NORMALISE: tl.constexpr,
    BE: tl.constexpr,
    FP64: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BE)
    inside = e < num_experts
    scores = tl.sqrt_rn(softplus_by(tl.load(logits + row * num_experts + e, inside, other=0.0), FP64))
    biased = scores + tl.load(bias + e, inside, other=0.0)
    left = tl.where(inside, biased, float("-inf"))
    taken = e < 0
    for _ in tl.static_range(TOP):
        best = tl.max(left, axis=0)
        free = inside & (taken == 0)
        winner = tl.min(tl.where(free & (left == best), e, BE), axis=0)
        taken = taken | (e == winner)
        left = tl.where(e == winner, float("-inf"), left)
    rank = tl.cumsum(taken.to(tl.int32), axis=0)
    total = 0.0
    for i in tl.static_range(TOP):
        here = taken & (rank == i + 1)
        total = total + tl.sum(tl.where(here, scores, 0.0), axis=0)
    total = total + 1e-20
    share = tl.div_rn(scores, tl.zeros((BE,), tl.float32) + total) if NORMALISE else scores
    places = row * TOP + rank - 1
    tl.store(ids + places, e.to(tl.int64), taken)
    tl.store(weights + places, share * factor, taken)


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
        *(source, bias, ids, weights, factor, num_experts),
        TOP=num_selected,
        NORMALISE=normalise,
        BE=power_of_two(num_experts),
        FP64=fp64,
    )
    return ids, weights
