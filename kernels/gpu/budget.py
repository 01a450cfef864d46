"""Which drafted rows a step verifies: one program per sequence ranks its entries among those of all.

See ``Ops.verify_budget``.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Block, Ptr, after_launches_before, device, kernel, launch

_TILE = 64


@device
def _sound(confidence: Block) -> Block:
    """Inside 0..1, 0 for NaN: no product grows, so what wins is a prefix."""
    return tl.where(confidence > 0.0, tl.where(confidence < 1.0, confidence, 1.0), 0.0)


@kernel
def _budget_kernel(
    confidences: Ptr,
    caps: Ptr,
    counts: Ptr,
    total: int,
    num_rows: int,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    own = tl.program_id(0)
    own_cap = tl.load(caps + own)
    count = own_cap * 0
    mine = 1.0
    for i in tl.static_range(SIZE):
        mine = mine * _sound(tl.load(confidences + own * SIZE + i))
        before = own_cap * 0
        for start in range(0, num_rows, TILE):
            other = start + tl.arange(0, TILE)
            inside = other < num_rows
            cap = tl.load(caps + other, inside, other=0)
            theirs = tl.full((TILE,), 1.0, tl.float32)
            for j in tl.static_range(SIZE):
                theirs = theirs * _sound(tl.load(confidences + other * SIZE + j, inside, other=0.0))
                earlier = (theirs == mine) & (other * SIZE + j < own * SIZE + i)
                wins = inside & (j < cap) & ((theirs > mine) | earlier)
                before += tl.sum(wins.to(tl.int64), axis=0)
        count += ((i < own_cap) & (before < total)).to(tl.int64)
    tl.store(counts + own, count)


def verify_budget(confidences: torch.Tensor, caps: torch.Tensor, total: int) -> torch.Tensor:
    """See ``Ops.verify_budget``."""
    source, limits = confidences.contiguous(), caps.contiguous()
    num_rows, size = source.shape
    counts = torch.empty(num_rows, dtype=torch.int64, device=source.device)
    launch(
        _budget_kernel,
        (num_rows,),
        *(source, limits, counts, total, num_rows),
        SIZE=size,
        TILE=_TILE,
    )
    return counts
