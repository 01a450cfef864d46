"""Pairs of a ratio-2 compressor where their halves lie: pooled in one launch, and what waits kept in another.

Two launches, since a step may keep a half in the very place that it has to read one from.

Legend: T rows, n pairs, h halves, P places of waiting halves, C channels.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
)
from deepinfer.kernels.gpu.pointwise import pooled

_BLOCK = 256


@device
def _half(rows: Ptr, waiting: Ptr, place: Block, num_rows: int, d: Block, width: int) -> Block:
    """Channels ``d`` of row ``place``, or of what waits if that lies behind the rows."""
    is_row, inside = place < num_rows, d < width
    own = tl.load(rows + place * width + d, inside & is_row, other=0.0)
    kept = tl.load(waiting + (place - num_rows) * width + d, inside & (place >= num_rows), other=0.0)
    return tl.where(is_row, own, kept)


@kernel
def _pairs_kernel(
    values: Ptr,
    scores: Ptr,
    kept_values: Ptr,
    kept_scores: Ptr,
    pairs: Ptr,
    out: Ptr,
    num_rows: int,
    width: int,
    BLOCK: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    pair = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, second = tl.load(pairs + 2 * pair), tl.load(pairs + 2 * pair + 1)
    s0 = _half(scores, kept_scores, first, num_rows, d, width)
    s1 = _half(scores, kept_scores, second, num_rows, d, width)
    v0 = _half(values, kept_values, first, num_rows, d, width)
    v1 = _half(values, kept_values, second, num_rows, d, width)
    tl.store(out + pair * width + d, pooled(v0, v1, s0, s1, BF16), d < width)


@kernel
def _keep_kernel(
    values: Ptr,
    scores: Ptr,
    kept_values: Ptr,
    kept_scores: Ptr,
    places: Ptr,
    halves: Ptr,
    width: int,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    item = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place, row = tl.load(places + item), tl.load(halves + item)
    inside = (d < width) & (place >= 0)
    tl.store(kept_values + place * width + d, tl.load(values + row * width + d, inside), inside)
    tl.store(kept_scores + place * width + d, tl.load(scores + row * width + d, inside), inside)


def pool_waiting(
    values: torch.Tensor,
    scores: torch.Tensor,
    kept_values: torch.Tensor,
    kept_scores: torch.Tensor,
    pairs: torch.Tensor,
    places: torch.Tensor,
    halves: torch.Tensor,
    bf16: bool,
) -> torch.Tensor:
    """See ``Ops.pool_waiting``: float32 [T, C] twice, [P, C] twice, int64 [n, 2], [h], [h] -> [n, C]."""
    given = values.contiguous(), scores.contiguous(), kept_values, kept_scores
    num_rows, width = values.shape
    blocks = ceil_div(width, _BLOCK)
    out = values.new_empty(len(pairs), width)
    grid = (len(pairs), blocks)
    launch(_pairs_kernel, grid, *given, pairs.contiguous(), out, num_rows, width, BLOCK=_BLOCK, BF16=bf16)
    items = places.contiguous(), halves.contiguous()
    launch(_keep_kernel, (len(places), blocks), *given, *items, width, BLOCK=_BLOCK)
    return out
