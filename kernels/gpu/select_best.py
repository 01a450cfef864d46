"""Exact top-k of ordered 16-bit keys through the largest keys of their blocks, one launch.

The best entries lie in the best blocks (``select_blocks.py``): the largest keys decide which blocks, as many
as entries are wanted, and the keys of these blocks decide the rest. The chosen blocks pass from thread to
thread through the place of the answer.

Legend: T rows, L keys of a row, Nb blocks.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.key_search import check_size, places, reached, search
from deepinfer.kernels.gpu.launching import (
    Ptr,
    after_launches_before,
    kernel,
    launch,
    power_of_two,
)

_CLOSE: tl.constexpr = tl.constexpr(8)
"""Steps of a key."""


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
    num_blocks: int,
    width_of_table: int,
    SIZE: tl.constexpr,
    WITHIN: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    FEW: tl.constexpr,
    TOP: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """WITHIN: of ``blocks``, whose keys follow each other, not of all blocks of a row.

    GROUP: entries of a group of the pool, whose records are chosen then; 0 for entries. EARLY: begins early.
    """
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, N // FEW)[:, None] * FEW + tl.arange(0, FEW)[None, :]
    count = tl.load(counts + row).to(tl.int32)
    line, out, own = best + row * num_blocks, chosen + row * top, blocks + row * num_blocks
    there = i < num_blocks
    if not WITHIN:
        there = there & (i * SIZE < count)
    # a number given for what is not loaded is not to be had: compiled, it fills words, not halves of them
    u = tl.where(there, tl.load(line + i, there).to(tl.int32), -32768)
    highest = tl.max(u, axis=1)
    high, low = tl.max(highest, axis=0) + 1, reached(highest, N // FEW, TOP)
    step = tl.maximum((high - low) // 3, 1)
    low, over, few = search(u, low, high, low + step, low + 2 * step, top, SIZE)
    keep, where, found = places(u, low, over, top)
    tl.store(out + where, i, keep)
    j = tl.arange(0, TOP)
    tl.store(out + j, -1, (j >= found) & (j < top))
    tl.debug_barrier()

    place = tl.load(out + j, j < top, other=-1)
    tl.debug_barrier()
    usable, block = place >= 0, place
    if WITHIN:
        block = tl.load(own + place, usable, other=-1)
    e = tl.arange(0, SIZE)[None, :]
    entry = block[:, None] * SIZE + e
    here = tl.broadcast_to(usable[:, None], (TOP, SIZE))
    seen = here if WITHIN else here & (entry < count)
    u = tl.where(seen, tl.load(keys + row * length + place[:, None] * SIZE + e, here).to(tl.int32), -32768)
    named = entry
    if GROUP:  # asked for while keys are on their way
        group = tl.load(table + row * width_of_table + block // (GROUP // SIZE), usable, other=0)
        named = (group * GROUP + block % (GROUP // SIZE) * SIZE)[:, None] + e
    # the entries' threshold is at that of blocks or above, most often close to it
    first = tl.minimum(low + _CLOSE, high)
    low, over, few = search(u, low, high, first, tl.maximum(few, first), top, 1)
    keep, where, found = places(u, low, over, top)
    tl.store(out + where, named, keep)
    tl.store(out + j, -1, (j >= found) & (j < top))


def select_best(
    keys: torch.Tensor,
    best: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    block_size: int,
    blocks: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    group: int = 0,
    warps: int = 16,
) -> torch.Tensor:
    """The ``top`` best entries, or their records, int32 [T, top], ascending, then -1.

    Args:
        keys: int16 [T, L], ordered; -32768 is absent.
        best: int16 [T, n], the largest key of each block.
        counts: integers [T], visible entries.
        top: how many, at least 1.
        block_size: entries of a block, a power of two.
        blocks: int32 [T, n], ascending, then -1: keys are those of these blocks, or of all of the row.
        table, group: groups of the pool, see ``select16.PoolGroups``.
        warps: of a program; moves no bit.
    """
    num_rows, length = keys.shape
    num_blocks = best.shape[1]
    chosen = torch.empty((num_rows, top), dtype=torch.int32, device=keys.device)
    early, size = has_wgmma(keys.device), power_of_two(num_blocks)
    check_size(max(size, power_of_two(top) * block_size))
    launch(
        _best_kernel,
        (num_rows,),
        *(keys, best, counts, best if blocks is None else blocks, best if table is None else table, chosen),
        *(length, top, num_blocks, 0 if table is None else table.shape[1]),
        num_warps=warps,
        SIZE=block_size,
        WITHIN=blocks is not None,
        GROUP=group,
        N=size,
        FEW=max(1, min(16, size // power_of_two(top))),
        TOP=power_of_two(top),
        EARLY=early,
        **({"launch_pdl": True} if early else {}),
    )
    return chosen
