"""Index scores on packed MXFP4 keys, profile fast: a stream of ordered 16-bit keys, no score is kept as a
number.

Keys are the left operand of the matrix unit, decoded between memory and the unit; the heads of one query
are the right one. A score is rounded as in training (docs/orders.md): the dot product, its product with the
head's weight and the sum over heads each to bfloat16, so that sixteen bits hold its place in the order. The
sum over heads is one reduction of a fixed shape, whatever the number of rows.

Legend: T rows, Hi index heads, Ci index width, L scored places of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.lanes import LIFT, mxfp4_factors, plane_e2m1, spread
from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch
from deepinfer.kernels.gpu.packed_attention import layout_in_words, words_of
from deepinfer.kernels.gpu.records import BoundRecords

ABSENT = -(2**15)
"""Below the key of every number."""


@dataclass(frozen=True)
class ScanTile:
    """A launch shape: entries of a tile, tiles of a program, stages of loads in flight, warps; moves no
    bit.
    """

    entries: int
    tiles: int
    stages: int
    warps: int


@device
def ordered16(score: Block) -> Block:
    """An int16 that orders like the bfloat16; -0 becomes 0."""
    bits = (score + 0.0).to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
    return (bits ^ ((bits >> 15) & 0x7FFF)).to(tl.int16)


@kernel
def _scan_kernel(
    q: Ptr,
    w: Ptr,
    data: Ptr,
    scales: Ptr,
    table: Ptr,
    counts: Ptr,
    blocks: Ptr,
    keys: Ptr,
    best: Ptr,
    width_of_table: int,
    length: int,
    num_candidates: int,
    HEADS: tl.constexpr,
    C: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK: tl.constexpr,
    WITHIN: tl.constexpr,
    KEYS: tl.constexpr,
    BEST: tl.constexpr,
    BE: tl.constexpr,
    TILES: tl.constexpr,
) -> None:
    row = tl.program_id(1).to(tl.int64)
    count = tl.load(counts + row).to(tl.int32)
    start = tl.program_id(0) * (BE * TILES)
    h, i = tl.arange(0, HEADS), tl.arange(0, C // 4)
    queries = q + (row * HEADS + h)[None, :] * C + 4 * i[:, None]
    lift = tl.full((), LIFT, tl.float32).to(tl.bfloat16)
    q0, q1 = tl.load(queries) * lift, tl.load(queries + 1) * lift
    q2, q3 = tl.load(queries + 2) * lift, tl.load(queries + 3) * lift
    weight = tl.load(w + row * HEADS + h)[None, :]
    end, word = min(start + BE * TILES, length), tl.arange(0, C // 8)
    if WITHIN == 0:
        end = min(end, count)
    part = tl.arange(0, C // 32)
    # which groups, before the loop: an address that hangs on a load inside it could not be fetched ahead
    which = tl.arange(0, TILES)
    pages = start // LAYOUT[0] + which
    groups = tl.load(table + row * width_of_table + pages, pages < width_of_table, other=0)
    for first in range(start, end, BE):
        place = first + tl.arange(0, BE)
        entry = place
        seen = place < end
        if WITHIN:
            block = tl.load(blocks + row * num_candidates + place // BLOCK, seen, other=-1)
            entry = block * BLOCK + place % BLOCK
            seen = seen & (block >= 0) & (entry < count)
        if WITHIN == 0 and LAYOUT[0] % BE == 0:  # a tile lies in one group of the pool, one after the other
            group = tl.sum(tl.where(which == (first - start) // LAYOUT[0], groups, 0), axis=0).to(tl.int64)
            own = first % LAYOUT[0] + tl.arange(0, BE)
            codes = tl.load(data + group * LAYOUT[1] + own[:, None] * LAYOUT[2] + word[None, :])
            powers = tl.load(scales + group * LAYOUT[3] + own[:, None] * LAYOUT[4] + part[None, :])
        else:
            group = tl.load(table + row * width_of_table + entry // LAYOUT[0], seen, other=0).to(tl.int64)
            own = entry % LAYOUT[0]
            places = (group * LAYOUT[1] + own * LAYOUT[2])[:, None] + word[None, :]
            codes = tl.load(data + places, seen[:, None], other=0)
            places = (group * LAYOUT[3] + own * LAYOUT[4])[:, None] + part[None, :]
            powers = tl.load(scales + places, seen[:, None], other=0)
        by = spread(mxfp4_factors(powers), 4)
        dots = tl.dot(plane_e2m1(codes, by, 0), q0)
        dots = tl.dot(plane_e2m1(codes, by, 1), q1, dots)
        dots = tl.dot(plane_e2m1(codes, by, 2), q2, dots)
        dots = tl.dot(plane_e2m1(codes, by, 3), q3, dots)
        positive = tl.maximum(dots, 0.0).to(tl.bfloat16)
        score = tl.sum((positive * weight).to(tl.float32), axis=1)
        key = tl.where(seen, ordered16(score), -32768)
        if KEYS:
            tl.store(keys + row * length + place, key.to(tl.int16), place < length)
        if BEST:
            largest = tl.max(key.to(tl.int32).reshape(BE // BLOCK, BLOCK), axis=1)
            b = first // BLOCK + tl.arange(0, BE // BLOCK)
            tl.store(best + row * num_candidates + b, largest.to(tl.int16), b < num_candidates)


def check_table(table: torch.Tensor) -> None:
    """Kernels go from row to row by the width of the table.

    Raises:
        ValueError: its rows do not follow each other in memory (as those of an expanded one).
    """
    if not table.is_contiguous():
        raise ValueError("scan: the table of groups must be contiguous")


def scan(
    q: torch.Tensor,
    w: torch.Tensor,
    pool: BoundRecords,
    table: torch.Tensor,
    counts: torch.Tensor,
    length: int,
    block_size: int,
    tile: ScanTile,
    blocks: torch.Tensor | None = None,
    keys: bool = True,
    best: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ordered keys of every row over its own entries, or over those of its candidate blocks.

    The first level of a selection asks for the largest keys of blocks alone: then keys are not written.

    Args:
        q: bfloat16 [T, Hi, Ci], values that MXFP4 holds.
        w: bfloat16 [T, Hi].
        pool: MXFP4 records of width Ci.
        table: int32 [T, groups], the pool's group that holds entries ``n * per_group ..`` of the row.
        counts: int32 [T], visible entries.
        length: places of a row, at least the largest count or the entries of all candidate blocks.
        block_size: entries of a candidate block.
        tile: moves no bit; a multiple of ``block_size`` entries.
        blocks: int32 [T, Nb], -1 for none; scores these instead of all entries.
        keys, best: whether to give keys, and the largest key of every block.

    Returns:
        int16 [T, length] keys, ``ABSENT`` where invisible (not written past the tiles that hold visible
        entries: callers read ``counts`` places), and int16 [T, ceil(length / block_size)]; empty tensors
        where they are not asked for.
    """
    check_table(table)
    num_rows, num_heads, width = q.shape
    ordered = torch.empty(num_rows, length if keys else 0, dtype=torch.int16, device=q.device)
    num_blocks = ceil_div(length, block_size) if best else 0
    largest = torch.empty(num_rows, num_blocks, dtype=torch.int16, device=q.device)
    launch(
        _scan_kernel,
        (ceil_div(length, tile.entries * tile.tiles), num_rows),
        *(
            q,
            w,
            words_of(pool),
            pool.scales,
            table,
            counts,
            counts if blocks is None else blocks,
            ordered,
            largest,
        ),
        *(table.shape[1], length, num_blocks if blocks is None else blocks.shape[1]),
        num_warps=tile.warps,
        num_stages=tile.stages,
        HEADS=num_heads,
        C=width,
        LAYOUT=layout_in_words(pool),
        BLOCK=block_size,
        WITHIN=blocks is not None,
        KEYS=keys,
        BEST=best,
        BE=tile.entries,
        TILES=tile.tiles,
    )
    return ordered, largest
