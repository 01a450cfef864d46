"""Exact top-k of ordered 16-bit keys through the largest keys of their blocks, one launch.

The best entries lie in the best blocks (``select16.py``): the largest keys decide which blocks, as many as
entries are wanted, and the keys of these blocks decide the rest. The chosen blocks pass from thread to thread
through the place of the answer.

A search tries two values at a time; integers are counted, in any order.

Legend: T rows, L keys of a row, Nb blocks.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)

_CLOSE: tl.constexpr = tl.constexpr(8)
"""Steps of a key."""


@device
def _search(
    u: Block, low: Block, high: Block, first: Block, second: Block, top: int, FEW: tl.constexpr
) -> tuple[Block, Block, Block]:
    """A threshold of ``u`` [R, n]: less than ``top`` lie above it, with those that equal it ``top`` or more
    do, or all; how many lie above; and the smallest value that less than ``top / FEW`` were seen to reach.

    ``top`` or more reach ``low``, or it is that of absence; none reaches ``high``. ``first`` and ``second``
    are tried first, in ascending order, above ``low``.
    """
    over, few = low * 0, high
    while high - low > 1:
        both = (u >= first).to(tl.int32) + ((u >= second).to(tl.int32) << 16)
        total = tl.sum(tl.sum(both, axis=1), axis=0)
        more, less = total & 0xFFFF, total >> 16
        few = tl.where(less * FEW < top, tl.minimum(few, second), few)
        few = tl.where(more * FEW < top, tl.minimum(few, first), few)
        # no more than are wanted: all of them, as if they lay above what is just below
        exact = (less == top) | (more == top)
        found = tl.where(less == top, second, first)
        over = tl.where(less >= top, over, tl.where(more >= top, less, more))
        high = tl.where(less >= top, high, tl.where(more >= top, second, first))
        low = tl.where(less >= top, second, tl.where(more >= top, first, low))
        over = tl.where(exact, top, over)
        high, low = tl.where(exact, found, high), tl.where(exact, found - 1, low)
        step = tl.maximum((high - low) // 3, 1)
        first, second = low + step, low + 2 * step
    return low, over, few


@device
def _places(u: Block, threshold: Block, over: Block, top: int) -> tuple[Block, Block, Block]:
    """Which of ``u`` [R, n] are chosen, their places in the answer, and how many; ties to the first."""
    above, equal = (u > threshold).to(tl.int32), ((u == threshold) & (u > -32768)).to(tl.int32)
    both = (above << 16) | equal
    own = tl.sum(both, axis=1)
    wanted = top - over
    both = tl.cumsum(both, axis=1) + (tl.cumsum(own, axis=0) - own)[:, None]
    rank = both & 0xFFFF
    keep = (above > 0) | ((equal > 0) & (rank <= wanted))
    return keep, (both >> 16) + tl.minimum(rank, wanted) - 1, tl.where(threshold > -32768, top, over)


@kernel
def _best_kernel(
    keys: Ptr,
    best: Ptr,
    counts: Ptr,
    blocks: Ptr,
    table: Ptr,
    chosen: Ptr,
    length: int,
    top: int,
    num_best: int,
    num_blocks: int,
    width_of_table: int,
    SIZE: tl.constexpr,
    MODE: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    FEW: tl.constexpr,
    TOP: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """MODE 0: all blocks of a row. 1: ``blocks``, whose keys follow each other. 2: ``blocks``, of all keys.

    GROUP: entries of a group of the pool, whose records are chosen then; 0 for entries. EARLY: begins early.
    """
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, N // FEW)[:, None] * FEW + tl.arange(0, FEW)[None, :]
    count = tl.load(counts + row).to(tl.int32)
    line, out, own = best + row * num_best, chosen + row * top, blocks + row * num_blocks
    there = i < num_blocks
    if MODE == 0:
        there = there & (i * SIZE < count)
    place = i
    if MODE == 2:
        place = tl.load(own + i, there, other=-1)
        there = (place >= 0) & (place * SIZE < count)
    # a number given for what is not loaded is not to be had: compiled, it fills words, not halves of them
    u = tl.where(there, tl.load(line + place, there).to(tl.int32), -32768)
    highest = tl.max(u, axis=1)
    high, low = tl.max(highest, axis=0) + 1, count * 0 - 32768
    if N // FEW == TOP and TOP == top:  # of as many groups as are wanted, each has its largest one
        low = tl.min(highest, axis=0)
    step = tl.maximum((high - low) // 3, 1)
    low, over, few = _search(u, low, high, low + step, low + 2 * step, top, SIZE)
    keep, where, found = _places(u, low, over, top)
    tl.store(out + where, i, keep)
    j = tl.arange(0, TOP)
    tl.store(out + j, -1, (j >= found) & (j < top))
    tl.debug_barrier()

    place = tl.load(out + j, j < top, other=-1)
    tl.debug_barrier()
    usable, block = place >= 0, place
    if MODE != 0:
        block = tl.load(own + place, usable, other=-1)
    e = tl.arange(0, SIZE)[None, :]
    entry = block[:, None] * SIZE + e
    here = tl.broadcast_to(usable[:, None], (TOP, SIZE))
    at = place[:, None] * SIZE + e if MODE == 1 else entry
    seen = here if MODE == 1 else here & (entry < count)
    u = tl.where(seen, tl.load(keys + row * length + at, here).to(tl.int32), -32768)
    named = entry
    if GROUP:  # asked for while keys are on their way
        group = tl.load(table + row * width_of_table + block // (GROUP // SIZE), usable, other=0)
        named = (group * GROUP + block % (GROUP // SIZE) * SIZE)[:, None] + e
    # the entries' threshold is at that of blocks or above, most often close to it
    first = tl.minimum(low + _CLOSE, high)
    low, over, few = _search(u, low, high, first, tl.maximum(few, first), top, 1)
    keep, where, found = _places(u, low, over, top)
    tl.store(out + where, named, keep)
    tl.store(out + j, -1, (j >= found) & (j < top))


def select_best(
    keys: torch.Tensor,
    best: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    block_size: int,
    blocks: torch.Tensor | None = None,
    compact: bool = False,
    table: torch.Tensor | None = None,
    group: int = 0,
    warps: int = 16,
) -> torch.Tensor:
    """The ``top`` best entries, or their records, int32 [T, top], ascending, then -1.

    Args:
        keys: int16 [T, L], ordered; -32768 is absent.
        best: int16 [T, n], the largest key of each block: of those of ``blocks`` if keys are ``compact``, of
            all blocks of the row if not.
        counts: integers [T], visible entries.
        top: how many, at least 1.
        block_size: entries of a block, a power of two.
        blocks: int32 [T, Nb], ascending, then -1; without it, all of them.
        compact: whether keys are those of ``blocks`` alone.
        table, group: groups of the pool, see ``select16.PoolGroups``.
        warps: of a program; moves no bit.
    """
    num_rows, length = keys.shape
    num_blocks = best.shape[1] if blocks is None else blocks.shape[1]
    chosen = torch.empty((num_rows, top), dtype=torch.int32, device=keys.device)
    early, size = has_wgmma(keys.device), power_of_two(num_blocks)
    launch(
        _best_kernel,
        (num_rows,),
        *(keys, best, counts, best if blocks is None else blocks, best if table is None else table, chosen),
        *(length, top, best.shape[1], num_blocks, 0 if table is None else table.shape[1]),
        num_warps=warps,
        SIZE=block_size,
        MODE=0 if blocks is None else 1 if compact else 2,
        GROUP=group,
        N=size,
        FEW=max(1, min(16, size // power_of_two(top))),
        TOP=power_of_two(top),
        EARLY=early,
        **({"launch_pdl": True} if early else {}),
    )
    return chosen
