"""Pairs of row and expert, grouped so that a tile of a grouped product has one expert.

Integer work in torch on the device, without a synchronisation: every expert gets whole tiles, and the grid is
as large as the worst split needs; programs past the last tile leave. Where a pair lands moves no bit, since
its products are its own sums.

Legend: P pairs, E experts, B pairs a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.kernels.gpu.expert_plan import MAX_EXPERTS, MAX_PAIRS, planned
from deepinfer.kernels.gpu.launching import ceil_div


@dataclass(frozen=True)
class Tiles:
    """A plan of ``len(expert)`` tiles.

    Attributes:
        order: int64 [P], pair numbers by expert.
        expert: int32 [tiles], E for a tile that is not used.
        first: int32 [tiles], where in ``order`` the pairs of a tile begin.
        last: int32 [tiles], where those of its expert end.
    """

    order: torch.Tensor
    expert: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor


def _plan(
    order: torch.Tensor,
    starts: torch.Tensor,
    skipped: torch.Tensor,
    size: int,
    tiles: torch.Tensor,
    count: int,
) -> Tiles:
    """``tiles`` [E] tiles of ``size`` an expert, after ``skipped`` [E] of its pairs; at most ``count`` in
    all.
    """
    num_experts, ends = len(tiles), torch.cumsum(tiles, 0)
    tile = torch.arange(count, device=order.device)
    expert = torch.searchsorted(ends, tile, right=True)
    known = expert.clamp(max=num_experts - 1)
    before = ends[known] - tiles[known]
    first = starts[known] + skipped[known] + (tile - before) * size
    return Tiles(order, expert.to(torch.int32), first.to(torch.int32), starts[known + 1].to(torch.int32))


def _sorted(ids: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pair numbers by expert, and where each expert's begin [E + 1]."""
    sorted_ids, order = ids.flatten().sort(stable=True)
    return order, torch.searchsorted(sorted_ids, torch.arange(num_experts + 1, device=ids.device))


def _is_small(ids: torch.Tensor, num_experts: int) -> bool:
    return 0 < ids.numel() <= MAX_PAIRS and num_experts <= MAX_EXPERTS


def plan_tiles(ids: torch.Tensor, num_experts: int, size: int) -> Tiles:
    """Group the pairs ``ids`` int64 [T, k] (expert numbers) into tiles of ``size``."""
    count = ceil_div(ids.numel(), size) + min(num_experts, ids.numel())
    if _is_small(ids, num_experts):
        order, plan, _ = planned(ids, num_experts, size, size, count, 0)
        return Tiles(order, *plan)
    order, starts = _sorted(ids, num_experts)
    counts = starts[1:] - starts[:-1]
    tiles = (counts + size - 1) // size
    return _plan(order, starts, counts * 0, size, tiles, count)


def plan_two_sizes(ids: torch.Tensor, num_experts: int, size: int, tail: int) -> tuple[Tiles, Tiles]:
    """As above, but what an expert has left over after whole tiles goes to one of ``tail`` if it fits."""
    pairs = ids.numel()
    most, fewest = (pairs + num_experts * (size - 1 - tail)) // size, min(num_experts, pairs)
    if _is_small(ids, num_experts):
        order, plan, rest = planned(ids, num_experts, size, tail, most, fewest)
        return Tiles(order, *plan), Tiles(order, *rest)
    order, starts = _sorted(ids, num_experts)
    counts = starts[1:] - starts[:-1]
    whole = (counts + size - 1 - tail) // size
    done = torch.minimum(whole * size, counts)
    large = _plan(order, starts, counts * 0, size, whole, most)
    small = _plan(order, starts, done, tail, (counts > done).to(counts.dtype), fewest)
    return large, small
