"""Groups pairs of row and expert in one launch: what ``expert_groups`` says in twenty, for few pairs.

One program counts the pairs of each expert, lays them out by expert in the order they come, and cuts every
expert's run into tiles. All of it is integer work; where a pair lands moves no bit.

Legend: P pairs, E experts.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)

MAX_PAIRS, MAX_EXPERTS = 1024, 64
"""What one program does at once; beyond it sorting pays."""
_CHUNK = 64


@device
def _write_tiles(
    plan: Ptr,
    starts: Block,
    counts: Block,
    skipped: Block,
    tiles: Block,
    size: int,
    count: int,
    num_experts: int,
    TILES: tl.constexpr,
    EXPERTS: tl.constexpr,
) -> None:
    """``plan`` int32 [3, count]: expert of a tile (E: none), where its pairs begin and its expert's end."""
    e, t = tl.arange(0, EXPERTS), tl.arange(0, TILES)
    ends = tl.cumsum(tiles, axis=0)
    past = (ends[None, :] <= t[:, None]) & (e < num_experts)[None, :]
    expert = tl.sum(past.to(tl.int32), axis=1)
    is_own = e[None, :] == expert[:, None]
    begins = starts + skipped - (ends - tiles) * size
    first = tl.sum(tl.where(is_own, begins[None, :], 0), axis=1) + t * size
    last = tl.sum(tl.where(is_own, (starts + counts)[None, :], 0), axis=1)
    tl.store(plan + t, expert, t < count)
    tl.store(plan + count + t, first, t < count)
    tl.store(plan + 2 * count + t, last, t < count)


@kernel
def _plan_kernel(
    ids: Ptr,
    order: Ptr,
    large: Ptr,
    small: Ptr,
    num_pairs: int,
    num_experts: int,
    size: int,
    tail: int,
    num_large: int,
    num_small: int,
    CHUNK: tl.constexpr,
    LARGE: tl.constexpr,
    SMALL: tl.constexpr,
    EXPERTS: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """SMALL 0: one size only."""
    if EARLY:
        after_launches_before()
    e, i = tl.arange(0, EXPERTS), tl.arange(0, CHUNK)
    counts = e * 0
    for begin in range(0, num_pairs, CHUNK):
        inside = begin + i < num_pairs
        expert = tl.load(ids + begin + i, inside, other=0).to(tl.int32)
        hits = ((expert[:, None] == e[None, :]) & inside[:, None]).to(tl.int32)
        counts += tl.sum(hits, axis=0)
    starts = tl.cumsum(counts, axis=0) - counts
    before = starts
    for begin in range(0, num_pairs, CHUNK):
        inside = begin + i < num_pairs
        expert = tl.load(ids + begin + i, inside, other=0).to(tl.int32)
        hits = ((expert[:, None] == e[None, :]) & inside[:, None]).to(tl.int32)
        ahead = tl.cumsum(hits, axis=0) - hits + before[None, :]
        place = tl.sum(hits * ahead, axis=1)
        tl.store(order + place, (begin + i).to(tl.int64), inside)
        before += tl.sum(hits, axis=0)
    if SMALL == 0:
        tiles = (counts + size - 1) // size
        _write_tiles(large, starts, counts, e * 0, tiles, size, num_large, num_experts, LARGE, EXPERTS)
    else:
        whole = (counts + size - 1 - tail) // size
        done = tl.minimum(whole * size, counts)
        _write_tiles(large, starts, counts, e * 0, whole, size, num_large, num_experts, LARGE, EXPERTS)
        rest = (counts > done).to(tl.int32)
        _write_tiles(small, starts, counts, done, rest, tail, num_small, num_experts, SMALL, EXPERTS)


def planned(
    ids: torch.Tensor, num_experts: int, size: int, tail: int, num_large: int, num_small: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Order int64 [P] of the pairs ``ids`` int64 [T, k], and plans int32 [3, tiles] of two sizes.

    ``num_small`` is 0 for one size only; tiles past the last hold expert E and places without meaning.
    """
    place, pairs = ids.device, ids.numel()
    order = torch.empty(pairs, dtype=torch.int64, device=place)
    large = torch.empty(3, num_large, dtype=torch.int32, device=place)
    small = torch.empty(3, num_small, dtype=torch.int32, device=place)
    launch(
        _plan_kernel,
        (1,),
        *(ids.contiguous(), order, large, small, pairs, num_experts, size, tail, num_large, num_small),
        CHUNK=_CHUNK,
        LARGE=power_of_two(num_large),
        SMALL=power_of_two(num_small) if num_small else 0,
        EXPERTS=power_of_two(num_experts),
    )
    return order, large, small
