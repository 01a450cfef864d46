"""Exact top-k of the ordered 16-bit keys of a row, ties to the lowest index: level two of a selection.

A row has its own keys, or those of its best blocks (``select_blocks.py``): a program holds them all. Counts
of integers have no order to keep. The chosen indices come out in ascending order.

Where more blocks are scored than entries are wanted and the largest key of each is known, the best blocks are
found first (``select_best.py``).

Legend: T rows, L keys of a row, Nb blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.key_search import check_size, places, reached, search
from deepinfer.kernels.gpu.launching import (
    Ptr,
    after_launches_before,
    ceil_div,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.gpu.select_best import select_best

_CHUNK = 8
_FEW = 4096
"""Keys that the registers of four warps hold."""


@kernel
def _held_kernel(
    keys: Ptr,
    counts: Ptr,
    blocks: Ptr,
    table: Ptr,
    chosen: Ptr,
    length: int,
    top: int,
    num_blocks: int,
    width_of_table: int,
    SIZE: tl.constexpr,
    WITHIN: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    TOP: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """All keys of a row at once, ``N`` blocks of ``SIZE``.

    WITHIN: keys are those of ``blocks``. WHOLE: a row of keys is made of whole blocks.
    GROUP: entries of a group of the pool, whose records are chosen then; 0 for entries. EARLY: begins early.
    """
    if EARLY:
        after_launches_before()
    row, i, e = tl.program_id(0).to(tl.int64), tl.arange(0, N), tl.arange(0, SIZE)[None, :]
    count = tl.load(counts + row).to(tl.int32)
    block = tl.where(i < num_blocks, i, -1)
    if WITHIN:
        block = tl.load(blocks + row * num_blocks + i, i < num_blocks, other=-1)
    entry = block[:, None] * SIZE + e
    there = tl.broadcast_to((block >= 0)[:, None], (N, SIZE))
    seen = there & (entry < count)
    # a number given for what is not loaded is not to be had: compiled, it fills words, not halves of them
    place = keys + row * length + (i[:, None] * SIZE + e)
    u = tl.where(seen, tl.load(place, there if WHOLE else seen).to(tl.int32), -32768)
    named = entry
    if GROUP:  # records; asked for while keys are on their way
        usable = (block >= 0) & (block * SIZE < count)
        group = tl.load(table + row * width_of_table + block // (GROUP // SIZE), usable, other=0)
        named = (group * GROUP + block % (GROUP // SIZE) * SIZE)[:, None] + e
    largest = tl.max(u, axis=1)
    low, high = reached(largest, N, TOP), tl.max(largest, axis=0) + 1
    step = tl.maximum((high - low) // 3, 1)
    low, over, _ = search(u, low, high, low + step, low + 2 * step, top, 1)
    keep, where, found = places(u, low, over, top)
    tl.store(chosen + row * top + where, named, keep)
    rest = tl.arange(0, TOP)
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
    blocks: torch.Tensor | None,
    block_size: int,
    warps: int | None,
    groups: PoolGroups | None,
) -> torch.Tensor:
    num_rows, length = keys.shape
    num_blocks = ceil_div(length, block_size) if blocks is None else blocks.shape[1]
    size = power_of_two(num_blocks) * block_size
    check_size(size)
    if groups is not None and groups.size % block_size:
        raise ValueError("selection: a group of records must be whole blocks")
    chosen = torch.empty((num_rows, top), dtype=torch.int32, device=keys.device)
    early = has_wgmma(keys.device)
    launch(
        _held_kernel,
        (num_rows,),
        *(keys, counts, counts if blocks is None else blocks, counts if groups is None else groups.table),
        *(chosen, length, top, num_blocks, 0 if groups is None else groups.table.shape[1]),
        num_warps=warps or (4 if size <= _FEW else 16),
        SIZE=block_size,
        WITHIN=blocks is not None,
        WHOLE=length % block_size == 0,
        GROUP=0 if groups is None else groups.size,
        N=power_of_two(num_blocks),
        TOP=power_of_two(top),
        EARLY=early,
        **({"launch_pdl": True} if early else {}),
    )
    return chosen


def select_within(
    keys: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    blocks: torch.Tensor,
    block_size: int,
    warps: int | None = None,
    groups: PoolGroups | None = None,
    best: torch.Tensor | None = None,
) -> torch.Tensor:
    """Keys int16 [T, Nb * block_size] of the entries of ``blocks`` int32 [T, Nb] -> int32 [T, top]:
    those of the largest keys, ascending, then -1. A block below 0 has no entries.

    Args:
        keys, counts, top: as of ``select_entries``; ``counts`` are visible entries.
        blocks: ascending, then -1.
        block_size: a power of two.
        warps: of a program; moves no bit.
        groups: the records of the chosen entries are given then.
        best: int16 [T, Nb], the largest key of each block; saves time where there are more than ``top``.
    """
    if best is not None and blocks.shape[1] > top:
        pool = (None, 0) if groups is None else (groups.table, groups.size)
        return select_best(keys, best, counts, top, block_size, blocks, *pool)
    return _held(keys, counts, top, blocks, block_size, warps, groups)


def select_entries(
    keys: torch.Tensor,
    best: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    block_size: int,
    warps: int | None = None,
    groups: PoolGroups | None = None,
) -> torch.Tensor:
    """Keys int16 [T, L] of all entries of a row -> int32 [T, top]: those of the largest, ascending, then -1.

    Args:
        keys: ordered; -32768 is absent.
        best: int16 [T, ceil(L / block_size)], the largest key of each block.
        counts: integers [T]; only the first ``counts`` keys of a row are read.
        top: how many, at least 1.
        block_size: a power of two.
        warps: of a program; moves no bit.
        groups: the records of the chosen entries are given then.
    """
    if best.shape[1] > top:
        pool = (None, 0) if groups is None else (groups.table, groups.size)
        return select_best(keys, best, counts, top, block_size, None, *pool)
    return _held(keys, counts, top, None, _CHUNK, warps, groups)
