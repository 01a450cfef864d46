"""Exact top-k of ordered 16-bit keys, ties to the lowest index.

Counts of integers have no order to keep. Up to 16,384 keys a program holds them all and finds the threshold
bit by bit; longer rows are for ``select_long.py``. The chosen indices come out in ascending order.

The best entries of a row lie in the best blocks: were an entry chosen outside the ``top`` blocks of largest
keys, each of these would hold an entry that comes before it. So where the largest keys of blocks are known, a
row is not searched entry by entry (``select_best.py``).

Legend: T rows, L keys of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.gpu.select_best import select_best
from deepinfer.kernels.gpu.select_long import select_long

_HELD = 16384
_PLAIN, _COMPACT, _GATHERED = 0, 1, 2
_CHUNK = 8


@device
def _threshold(u: Block, top: int, N: tl.constexpr, TOP: tl.constexpr) -> Block:
    """The largest value that ``top`` or more of ``u`` [N, SIZE] reach, or a smaller one that exactly ``top``
    do.

    Of as many groups of values as are wanted, each has its largest one: all of these reach the smallest of
    them, which is where the search begins.
    """
    largest = tl.max(u, axis=1)
    low = tl.max(largest, axis=0) * 0
    if N > TOP:
        low = tl.min(tl.max(tl.reshape(largest, (TOP, N // TOP), can_reorder=True), axis=1), axis=0)
    elif N == TOP:
        low = tl.min(largest, axis=0)
    high = tl.max(largest, axis=0) + 1
    while high - low > 1:
        middle = (low + high) // 2
        reached = tl.sum(tl.sum((u >= middle).to(tl.int32), axis=1), axis=0)
        low = tl.where(reached >= top, middle, low)
        high = tl.where(reached > top, high, middle + (reached == top).to(tl.int32))
    return low


@kernel
def _held_kernel(
    keys: Ptr,
    counts: Ptr,
    blocks: Ptr,
    table: Ptr,
    chosen: Ptr,
    length: int,
    top: int,
    divisor: int,
    num_blocks: int,
    width_of_table: int,
    SIZE: tl.constexpr,
    MODE: tl.constexpr,
    WHOLE: tl.constexpr,
    NEWEST: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    TOP: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """All places of a row at once, ``N`` blocks of ``SIZE``.

    WHOLE: a row of keys is made of whole blocks. NEWEST: the last key of the row comes before all others.
    GROUP: entries of a group of the pool, whose records are chosen then; 0 for entries. EARLY: begins early.
    """
    if EARLY:
        after_launches_before()
    row, i, e = tl.program_id(0).to(tl.int64), tl.arange(0, N), tl.arange(0, SIZE)[None, :]
    count = (tl.load(counts + row).to(tl.int32) + divisor - 1) // divisor
    block = tl.where(i < num_blocks, i, -1)
    if MODE != 0:
        block = tl.load(blocks + row * num_blocks + i, i < num_blocks, other=-1)
    entry = block[:, None] * SIZE + e
    there = tl.broadcast_to((block >= 0)[:, None], (N, SIZE))
    seen = there & (entry < count)
    own = i[:, None] * SIZE + e if MODE == 1 else entry
    u = tl.load(keys + row * length + own, there if WHOLE else seen, other=-32768).to(tl.int32) + 32768
    u = tl.where(seen, u, 0)
    named = entry
    if GROUP:  # records; asked for while keys are on their way
        usable = (block >= 0) & (block * SIZE < count)
        group = tl.load(table + row * width_of_table + block // (GROUP // SIZE), usable, other=0)
        named = (group * GROUP + block % (GROUP // SIZE) * SIZE)[:, None] + e
    if NEWEST:
        u = tl.where(seen & (entry == count - 1), 65536, u)
    threshold = _threshold(u, top, N, TOP)
    above, equal = (u > threshold).to(tl.int32), ((u == threshold) & (u > 0)).to(tl.int32)
    both = (above << 16) | equal
    own_sum = tl.sum(both, axis=1)
    total = tl.sum(own_sum, axis=0)
    wanted = top - (total >> 16)
    both = tl.cumsum(both, axis=1) + (tl.cumsum(own_sum, axis=0) - own_sum)[:, None]
    rank = both & 0xFFFF
    keep = (above > 0) | ((equal > 0) & (rank <= wanted))
    tl.store(chosen + row * top + (both >> 16) + tl.minimum(rank, wanted) - 1, named, keep)
    rest, found = tl.arange(0, TOP), (total >> 16) + tl.minimum(total & 0xFFFF, wanted)
    tl.store(chosen + row * top + rest, -1, (rest >= found) & (rest < top))


@dataclass(frozen=True)
class PoolGroups:
    """Where records of a row's entries lie: ``table`` int32 [T, groups], ``size`` entries a group."""

    table: torch.Tensor
    size: int

    def __post_init__(self) -> None:
        """Raise ValueError if rows of the table do not follow each other in memory."""
        if not self.table.is_contiguous():
            raise ValueError("PoolGroups: the table of groups must be contiguous")


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
    groups: PoolGroups | None = None,
) -> torch.Tensor:
    num_rows, length = keys.shape
    num_blocks = ceil_div(length, block_size) if blocks is None else blocks.shape[1]
    if groups is not None and groups.size % block_size:
        raise ValueError("selection: a group of records must be whole blocks")
    chosen = torch.empty((num_rows, top), dtype=torch.int32, device=keys.device)
    early = groups is not None and has_wgmma(keys.device)
    launch(
        _held_kernel,
        (num_rows,),
        *(keys, counts, counts if blocks is None else blocks, counts if groups is None else groups.table),
        *(chosen, length, top, divisor, num_blocks, 0 if groups is None else groups.table.shape[1]),
        num_warps=warps,
        SIZE=block_size,
        MODE=mode,
        WHOLE=length % block_size == 0,
        NEWEST=newest,
        GROUP=0 if groups is None else groups.size,
        N=power_of_two(num_blocks),
        TOP=power_of_two(top),
        EARLY=early,
        **({"launch_pdl": True} if early else {}),
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
        return _held(keys, counts, top, divisor, None, _CHUNK, _PLAIN, newest, warps)
    return select_long(keys, counts, top, divisor, newest, warps, _HELD)


def select_within(
    keys: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    blocks: torch.Tensor,
    block_size: int,
    warps: int = 16,
    groups: PoolGroups | None = None,
    best: torch.Tensor | None = None,
) -> torch.Tensor:
    """The best entries of each row's ``blocks`` int32 [T, Nb]; ``keys`` int16 [T, Nb * block_size] are
    theirs, -32768 where invisible, and ``best`` int16 [T, Nb] the largest of each block, if known.

    With ``groups``, the records of these entries.
    """
    if best is None or blocks.shape[1] <= top or blocks.shape[1] > _HELD:
        return _held(keys, counts, top, 1, blocks, block_size, _COMPACT, False, warps, groups)
    pool = () if groups is None else (groups.table, groups.size)
    return select_best(keys, best, counts, top, block_size, blocks, True, *pool)


def select_entries(
    keys: torch.Tensor,
    best: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    block_size: int,
    warps: int = 16,
    held: int = _HELD,
    blocks: torch.Tensor | None = None,
    groups: PoolGroups | None = None,
) -> torch.Tensor:
    """As ``select16``, through the largest keys of blocks ``best`` int16 [T, ceil(L / block_size)] if there
    are more than ``top`` blocks.

    ``blocks`` int32 [T, Nb] are more than ``top`` best blocks of each row, if somebody has chosen them. With
    ``groups``, the records of the chosen entries.
    """
    num_blocks = ceil_div(keys.shape[1], block_size)
    if num_blocks > top:
        own = None if blocks is None or blocks.shape[1] <= top else blocks
        if min(num_blocks, num_blocks if own is None else own.shape[1]) <= held:
            pool = () if groups is None else (groups.table, groups.size)
            return select_best(keys, best, counts, top, block_size, own, False, *pool)
        blocks = select16(best, counts, top, block_size, warps=warps, held=held)
        return _held(keys, counts, top, 1, blocks, block_size, _GATHERED, False, warps, groups)
    if groups is not None and keys.shape[1] <= held:
        return _held(keys, counts, top, 1, None, _CHUNK, _PLAIN, False, warps, groups)
    if groups is not None:
        raise ValueError("select_entries: records of long rows are chosen through their blocks")
    return select16(keys, counts, top, warps=warps, held=held)
