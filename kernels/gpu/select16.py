"""Exact top-k of ordered 16-bit keys, ties to the lowest index.

Counts of integers have no order to keep. Up to 16,384 keys a program holds them all and finds the threshold
bit by bit; above that, two histograms do, one of the upper bytes and one of the lower bytes below the
threshold's upper byte. The chosen indices come out in ascending order.

The best entries of a long row lie in the best blocks: were an entry chosen outside the ``top`` blocks of
largest keys, each of these would hold an entry that comes before it. So a long row is never searched entry
by entry.

Legend: T rows, L keys of a row.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch, power_of_two

_HELD = 16384
_PLAIN, _COMPACT, _GATHERED = 0, 1, 2


@device
def _entry_of(
    blocks: Ptr,
    row: Block,
    place: Block,
    inside: Block,
    num_blocks: int,
    SIZE: tl.constexpr,
    MODE: tl.constexpr,
) -> Block:
    """The index that a place stands for, -1 for none: itself, or an entry of the row's blocks."""
    if MODE == 0:
        entry = tl.where(inside, place, -1)
    else:
        block = tl.load(blocks + row * num_blocks + place // SIZE, inside, other=-1)
        entry = tl.where(block >= 0, block * SIZE + place % SIZE, -1)
    return entry


@kernel
def _held_kernel(
    keys: Ptr,
    counts: Ptr,
    blocks: Ptr,
    chosen: Ptr,
    length: int,
    places: int,
    top: int,
    divisor: int,
    num_blocks: int,
    SIZE: tl.constexpr,
    MODE: tl.constexpr,
    NEWEST: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """All places of a row at once. NEWEST: the last key of the row comes before all others."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    count = (tl.load(counts + row).to(tl.int32) + divisor - 1) // divisor
    entry = _entry_of(blocks, row, place, place < places, num_blocks, SIZE, MODE)
    seen = (entry >= 0) & (entry < count)
    own = place if MODE == 1 else entry
    u = tl.load(keys + row * length + own, seen, other=-32768).to(tl.int32) + 32768
    if NEWEST:
        u = tl.where(seen & (entry == count - 1), 65536, u)
    threshold = count * 0  # in the end the largest value that at least ``top`` keys reach
    for i in tl.static_range(17):
        candidate = threshold + (1 << (16 - i))
        reached = tl.sum((u >= candidate).to(tl.int32), axis=0)
        threshold = tl.where(reached >= top, candidate, threshold)
    above, equal = (u > threshold).to(tl.int32), ((u == threshold) & (u > 0)).to(tl.int32)
    wanted = top - tl.sum(above, axis=0)
    both = tl.cumsum((above << 16) | equal, axis=0)
    rank = both & 0xFFFF
    keep = (above > 0) | ((equal > 0) & (rank <= wanted))
    tl.store(chosen + row * top + (both >> 16) + tl.minimum(rank, wanted) - 1, entry, keep)


@device
def _at(line: Ptr, place: Block, count: Block, NEWEST: tl.constexpr) -> Block:
    """Keys as 0 to 65535, 0 where absent; 65535 for the newest, which no number has."""
    u = tl.load(line + place, place < count, other=-32768).to(tl.int32) + 32768
    return tl.where(place == count - 1, 65535, u) if NEWEST else u


@device
def _cut(counts: Block, wanted: Block) -> tuple[Block, Block]:
    """The highest bin that ``wanted`` counts reach from above, and how many lie above it."""
    reached = tl.cumsum(counts, axis=0, reverse=True)
    bin_number = tl.maximum(tl.sum((reached >= wanted).to(tl.int32), axis=0) - 1, 0)
    return bin_number, tl.sum(tl.where(tl.arange(0, 256) > bin_number, counts, 0), axis=0)


@kernel
def _long_kernel(
    keys: Ptr,
    counts: Ptr,
    chosen: Ptr,
    length: int,
    top: int,
    divisor: int,
    NEWEST: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """Three passes over a row of any length."""
    row = tl.program_id(0).to(tl.int64)
    line, out, lane = keys + row * length, chosen + row * top, tl.arange(0, B)
    count = min((tl.load(counts + row).to(tl.int32) + divisor - 1) // divisor, length)
    upper = tl.zeros((256,), tl.int32)
    for first in range(0, count, B):
        u = _at(line, first + lane, count, NEWEST)
        upper += tl.histogram(u >> 8, 256, mask=u > 0)
    wanted = min(tl.sum(upper, axis=0), top)
    high, above = _cut(upper, wanted)
    lower = tl.zeros((256,), tl.int32)
    for first in range(0, count, B):
        u = _at(line, first + lane, count, NEWEST)
        lower += tl.histogram(u & 255, 256, mask=(u > 0) & ((u >> 8) == high))
    low, more = _cut(lower, wanted - above)
    threshold, equals_wanted = high * 256 + low, wanted - above - more
    placed, equals = count * 0, count * 0
    for first in range(0, count, B):
        u = _at(line, first + lane, count, NEWEST)
        is_above, is_equal = (u > threshold).to(tl.int32), ((u == threshold) & (u > 0)).to(tl.int32)
        both = tl.cumsum((is_above << 16) | is_equal, axis=0)
        rank = equals + (both & 0xFFFF)
        keep = (is_above > 0) | ((is_equal > 0) & (rank <= equals_wanted))
        before = placed + (both >> 16) + tl.minimum(rank, equals_wanted) - 1
        tl.store(out + before, first + lane, keep)
        placed += tl.sum(is_above, axis=0)
        equals += tl.sum(is_equal, axis=0)


def _held(
    keys: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    divisor: int,
    blocks: torch.Tensor | None,
    block_size: int,
    mode: int,
    newest: bool,
    warps: int,
) -> torch.Tensor:
    num_rows, length = keys.shape
    places = length if blocks is None else blocks.shape[1] * block_size
    chosen = torch.full((num_rows, top), -1, dtype=torch.int32, device=keys.device)
    table = counts if blocks is None else blocks
    launch(
        _held_kernel,
        (num_rows,),
        *(
            keys,
            counts,
            table,
            chosen,
            length,
            places,
            top,
            divisor,
            0 if blocks is None else blocks.shape[1],
        ),
        num_warps=warps,
        SIZE=block_size,
        MODE=mode,
        NEWEST=newest,
        B=max(64, power_of_two(places)),
    )
    return chosen


def select16(
    keys: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    divisor: int = 1,
    newest: bool = False,
    warps: int = 16,
    held: int = _HELD,
) -> torch.Tensor:
    """Keys int16 [T, L] -> int32 [T, top]: indices of the largest, ascending, then -1.

    Args:
        keys: ordered; -32768 is absent.
        counts: integers [T]; only the first ``ceil(counts / divisor)`` keys of a row are read.
        top: how many, at least 1.
        divisor: entries that one key stands for.
        newest: whether the last of these keys is chosen before all others.
        warps, held: of a program, and keys that one holds; move no bit.
    """
    num_rows, length = keys.shape
    if length == 0:
        return torch.full((num_rows, top), -1, dtype=torch.int32, device=keys.device)
    if length <= held:
        return _held(keys, counts, top, divisor, None, 1, _PLAIN, newest, warps)
    chosen = torch.full((num_rows, top), -1, dtype=torch.int32, device=keys.device)
    constants = {"NEWEST": newest, "B": min(_HELD, power_of_two(length))}
    launch(
        _long_kernel, (num_rows,), keys, counts, chosen, length, top, divisor, num_warps=warps, **constants
    )
    return chosen


def select_within(
    keys: torch.Tensor, counts: torch.Tensor, top: int, blocks: torch.Tensor, block_size: int, warps: int = 16
) -> torch.Tensor:
    """The best entries of each row's ``blocks`` int32 [T, Nb]; ``keys`` int16 [T, Nb * block_size] are
    theirs.
    """
    return _held(keys, counts, top, 1, blocks, block_size, _COMPACT, False, warps)


def select_entries(
    keys: torch.Tensor,
    best: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    block_size: int,
    warps: int = 16,
    held: int = _HELD,
) -> torch.Tensor:
    """As ``select16``, through the largest keys of blocks ``best`` int16 [T, ceil(L / block_size)] if L is
    long.
    """
    if keys.shape[1] <= held or ceil_div(keys.shape[1], block_size) <= top:
        return select16(keys, counts, top, warps=warps, held=held)
    blocks = select16(best, counts, top, block_size, warps=warps, held=held)
    return _held(keys, counts, top, 1, blocks, block_size, _GATHERED, False, warps)
