"""Level one of a selection: the best blocks of a row, exact, from nothing but the largest key of each.

Entries are ordered by key, the largest first, equal keys by index, the lowest first; the chosen ones are the
first ``top`` of that order. Blocks are ordered alike, by their largest keys and then by index. *All chosen
entries lie in the first ``top`` blocks.* For let e lie in block B with ``top`` blocks before B. Each of them,
say A, has an entry a whose key is the largest of A: at least that of B, so at least e's. If it is larger, a
comes before e. If it is equal, the largest keys of A and B are equal too, so A has the lower index, and a, in
A, has a lower index than e, in B: again a comes before e. So ``top`` entries come before e, and e is not
chosen. Where blocks tie and some are cut off, no entry that is wanted is hence cut off with them; that would
be so if blocks of equal largest keys were taken in any other order.

A row may have more blocks than a program holds. They come in parts then, and what was best so far is carried
to the next part: a block that is not among the best of some of them is not among the best of all.

Legend: T rows, n blocks of a part, Nb wanted blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.key_search import places, reached, search
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)

HELD = 16384
"""Largest keys that a program holds."""


@device
def _first_level(
    u: Block,
    block: Block,
    own: Ptr,
    low: Block,
    guess: Block,
    top: int,
    R: tl.constexpr,
    TOP: tl.constexpr,
    GUESSED: tl.constexpr,
) -> None:
    """Write the best ``top`` of ``block`` with keys ``u``, both [R, n]; ``top`` or more reach ``low``.

    GUESSED: ``guess`` is tried first.
    """
    largest = tl.max(u, axis=1)
    high = tl.max(largest, axis=0) + 1
    low = tl.maximum(low, reached(largest, R, TOP))
    step = tl.maximum((high - low) // 3, 1)
    first, second = low + step, low + 2 * step
    if GUESSED:
        guess = tl.minimum(guess, high)
        first, second = tl.minimum(first, guess), tl.maximum(first, guess)
    threshold, over, _ = search(u, low, high, first, second, top, 1)
    keep, where, found = places(u, threshold, over, top)
    tl.store(own + where, block, keep)
    t = tl.arange(0, TOP)
    tl.store(own + t, -1, (t >= found) & (t < top))


@kernel
def _blocks_kernel(
    best: Ptr,
    counts: Ptr,
    carried: Ptr,
    carried_keys: Ptr,
    chosen: Ptr,
    chosen_keys: Ptr,
    own: Ptr,
    first: int,
    num_best: int,
    num_carried: int,
    num_chosen: int,
    top: int,
    SIZE: tl.constexpr,
    CARRIED: tl.constexpr,
    KEYS: tl.constexpr,
    AMONG: tl.constexpr,
    WHOLE: tl.constexpr,
    N: tl.constexpr,
    FEW: tl.constexpr,
    CHOSEN: tl.constexpr,
    TOP: tl.constexpr,
    FEWER: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    """Places 0 .. ``num_carried`` are those of carried blocks, the others ``first`` .. of the row.

    CARRIED: whether there are carried blocks. KEYS: whether keys of chosen blocks are written. AMONG: ``own``
    are among them. WHOLE: ``FEW`` places in a row are of one kind. CHOSEN, TOP: powers of two that hold what
    is wanted, 0 for nothing; FEWER is their ratio. EARLY: begins early.
    """
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    few, r = tl.arange(0, FEW)[None, :], tl.arange(0, N // FEW)[:, None] * FEW
    i = r + few
    count = tl.load(counts + row).to(tl.int32)
    place = i - num_carried
    block = first + place
    inside = (place >= 0) & (place < num_best)
    there = inside & (block * SIZE < count)
    usable = there
    if WHOLE:
        usable = tl.broadcast_to((r >= num_carried) & (r < num_carried + num_best), (N // FEW, FEW))
    # a number given for what is not loaded is not to be had: compiled, it fills words, not halves of them
    u = tl.where(there, tl.load(best + row * num_best + place, usable).to(tl.int32), -32768)
    if CARRIED:
        line = row * num_carried + i
        older = tl.load(carried + line, i < num_carried, other=-1)
        u = tl.where(older >= 0, tl.load(carried_keys + line, older >= 0).to(tl.int32), u)
        block = tl.where(i < num_carried, older, block)
        there = there | (older >= 0)
    lowest = count * 0 - 32768
    if CHOSEN:
        v = tl.where(there & (block == (count - 1) // SIZE), 32768, u)
        highest = tl.max(v, axis=1)
        low, high = reached(highest, N // FEW, CHOSEN), tl.max(highest, axis=0) + 1
        step = tl.maximum((high - low) // 3, 1)
        low, over, seldom = search(v, low, high, low + step, low + 2 * step, num_chosen, FEWER)
        keep, where, found = places(v, low, over, num_chosen)
        out, out_keys = chosen + row * num_chosen, chosen_keys + row * num_chosen
        tl.store(out + where, block, keep)
        if KEYS:
            tl.store(out_keys + where, u.to(tl.int16), keep)
        j = tl.arange(0, CHOSEN)
        tl.store(out + j, -1, (j >= found) & (j < num_chosen))
        if AMONG:  # all but the newest of the chosen blocks come before every other one
            tl.debug_barrier()
            c = tl.arange(0, CHOSEN // FEWER)[:, None] * FEWER + tl.arange(0, FEWER)[None, :]
            block = tl.load(out + c, c < num_chosen, other=-1)
            u = tl.load(out_keys + c, c < num_chosen).to(tl.int32)
            u = tl.where(block >= 0, u, -32768)
            _first_level(u, block, own + row * top, low, seldom, top, CHOSEN // FEWER, TOP, True)
    if TOP and not AMONG:
        _first_level(u, block, own + row * top, lowest, lowest, top, N // FEW, TOP, False)


@dataclass(frozen=True)
class Carried:
    """The best blocks of the parts so far: ``blocks`` int32 [T, Nb], ascending, then -1, and their largest
    ``keys`` int16 [T, Nb], undefined behind the last block.
    """

    blocks: torch.Tensor
    keys: torch.Tensor


def best_blocks(
    best: torch.Tensor,
    counts: torch.Tensor,
    block_size: int,
    num_blocks: int,
    top: int,
    first: int = 0,
    carried: Carried | None = None,
    carry: bool = False,
    warps: int = 16,
) -> tuple[Carried, torch.Tensor]:
    """The best ``num_blocks`` blocks if the newest one comes before all others, and the best ``top`` if not.

    Args:
        best: int16 [T, n], the largest key of each block of a part of the row; -32768 for none.
        counts: integers [T], visible entries of the whole row.
        block_size: entries of a block.
        num_blocks, top: how many, 0 for none.
        first: the first block of the part.
        carried: what the parts before left.
        carry: whether there is a part to come, so that keys are wanted.
        warps: of a program; moves no bit.

    Returns:
        The ``num_blocks``, their keys if they are to be carried, and int32 [T, top]; ascending, then -1.

    Raises:
        ValueError: more blocks than a program holds.
    """
    num_rows, num_best = best.shape
    num_carried = 0 if carried is None else carried.blocks.shape[1]
    size = power_of_two(max(num_best + num_carried, 1))
    if size > HELD:
        raise ValueError(f"best_blocks: {num_best + num_carried} blocks at a time, {HELD} fit")
    blocks, own = (
        torch.empty((num_rows, n), dtype=torch.int32, device=best.device) for n in (num_blocks, top)
    )
    are_among = num_blocks > top > 0  # the newest one, too
    num_keys = num_blocks if carry or are_among else 0
    keys = torch.empty((num_rows, num_keys), dtype=torch.int16, device=best.device)
    wanted, wanted_own = (power_of_two(n) if n else 0 for n in (num_blocks, top))
    few = max(1, min(16, size // max(wanted, wanted_own, 1)))
    early = has_wgmma(best.device)
    launch(
        _blocks_kernel,
        (num_rows if num_blocks or top else 0,),
        *((best, counts, counts, best) if carried is None else (best, counts, carried.blocks, carried.keys)),
        *(blocks, keys, own, first, num_best, num_carried, num_blocks, top),
        num_warps=warps,
        SIZE=block_size,
        CARRIED=carried is not None,
        KEYS=num_keys > 0,
        AMONG=are_among,
        WHOLE=num_best % few == num_carried % few == 0,
        N=size,
        FEW=few,
        CHOSEN=wanted,
        TOP=wanted_own,
        FEWER=max(wanted // max(wanted_own, 1), 1),
        EARLY=early,
        **({"launch_pdl": True} if early else {}),
    )
    return Carried(blocks, keys), own
