"""What attention of any width does with one block of rows after the other, profile fast.

The order of a sum is that of the slots, a block at a time, whether or not rows are asked for ahead.

Legend: H heads, C channels of a row, CP the power of two that holds them, BJ slots of a block.
"""

from __future__ import annotations

import triton.language as tl

from deepinfer.kernels.gpu.launching import Block, Ptr, device
from deepinfer.kernels.gpu.row_sources import codes_of, rows_of, values_of

LOWEST: tl.constexpr = tl.constexpr(-3.0e38)
"""The score of a slot that holds nothing."""


@device
def places_of(
    slots: Ptr,
    groups: Ptr,
    first: int,
    num_slots: int,
    LAYOUT: tl.constexpr,
    PAGED: tl.constexpr,
    BJ: tl.constexpr,
) -> tuple[Block, Block, Block]:
    """Group of each of BJ slots, its row there and whether there is one, from slot ``first``.

    Slots are those of the row; they are entries of its sequence if ``PAGED``, whose groups are given then.
    """
    j = first + tl.arange(0, BJ)
    slot = tl.load(slots + j, j < num_slots, other=-1).to(tl.int64)
    is_there = slot >= 0
    group = slot // LAYOUT[0]
    if PAGED:
        group = tl.load(groups + group, is_there, other=0).to(tl.int64)
    return group, slot % LAYOUT[0], is_there


@device
def _step(
    q: Block, k: Block, is_there: Block, scale: float, acc: Block, total: Block, largest: Block
) -> tuple[Block, Block, Block]:
    """One more block of rows ``k`` [BJ, CP]; sums [CP, H], [BJ, H] and largest score [H] so far."""
    seen = is_there[:, None]
    s = tl.where(seen, tl.dot(k, q) * scale, LOWEST)
    new = tl.maximum(largest, tl.max(s, axis=0))
    p = tl.where(seen, tl.exp2(s - new[None, :]), 0.0)
    factor = tl.exp2(largest - new)[None, :]
    return tl.dot(k.T, p.to(tl.bfloat16), acc * factor), total * factor + p, new


@device
def attend_part(
    q: Block,
    data: Ptr,
    scales: Ptr,
    slots: Ptr,
    groups: Ptr,
    num_slots: int,
    scale: float,
    acc: Block,
    total: Block,
    largest: Block,
    KIND: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGED: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    BJ: tl.constexpr,
) -> tuple[Block, Block, Block]:
    """Blocks of slots one after the other."""
    for first in range(0, num_slots, BJ):
        group, own, is_there = places_of(slots, groups, first, num_slots, LAYOUT, PAGED, BJ)
        k = rows_of(data, scales, group, own, is_there, KIND, LAYOUT, C, CP)
        acc, total, largest = _step(q, k, is_there, scale, acc, total, largest)
    return acc, total, largest


@device
def attend_ahead(
    q: Block,
    codes: Block,
    byte: Block,
    is_there: Block,
    group: Block,
    own: Block,
    comes: Block,
    data: Ptr,
    scales: Ptr,
    slots: Ptr,
    groups: Ptr,
    num_slots: int,
    scale: float,
    acc: Block,
    total: Block,
    largest: Block,
    KIND: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGED: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    BJ: tl.constexpr,
) -> tuple[Block, Block, Block]:
    """The same, given the first block's rows as they lie and the second's places; each asks for the next."""
    for first in range(0, num_slots, BJ):
        next_codes, next_byte = codes_of(data, scales, group, own, comes, KIND, LAYOUT, C, CP)
        next_group, next_own, next_comes = places_of(
            slots, groups, first + 2 * BJ, num_slots, LAYOUT, PAGED, BJ
        )
        k = values_of(codes, byte, KIND, CP)
        acc, total, largest = _step(q, k, is_there, scale, acc, total, largest)
        codes, byte, is_there = next_codes, next_byte, comes
        group, own, comes = next_group, next_own, next_comes
    return acc, total, largest
