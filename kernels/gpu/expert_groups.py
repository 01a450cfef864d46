"""Pairs of row and expert, grouped so that a tile of a grouped product has one expert.

Integer work in torch on the device, without a synchronisation: every expert gets whole tiles, and the grid is
as large as the worst split needs; programs past the last tile leave. Where a pair lands moves no bit, since
its products are its own sums.

Legend: P pairs, E experts, B pairs a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

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


def plan_tiles(ids: torch.Tensor, num_experts: int, size: int) -> Tiles:
    """Group the pairs ``ids`` int64 [T, k] (expert numbers) into tiles of ``size``."""
    order, starts = _sorted(ids, num_experts)
    counts, pairs = starts[1:] - starts[:-1], ids.numel()
    tiles = (counts + size - 1) // size
    return _plan(order, starts, counts * 0, size, tiles, ceil_div(pairs, size) + min(num_experts, pairs))


def plan_two_sizes(ids: torch.Tensor, num_experts: int, size: int, tail: int) -> tuple[Tiles, Tiles]:
    """As above, but what an expert has left over after whole tiles goes to one of ``tail`` if it fits."""
    order, starts = _sorted(ids, num_experts)
    counts, pairs = starts[1:] - starts[:-1], ids.numel()
    whole = (counts + size - 1 - tail) // size
    done = torch.minimum(whole * size, counts)
    most = (pairs + num_experts * (size - 1 - tail)) // size
    large = _plan(order, starts, counts * 0, size, whole, most)
    small = _plan(order, starts, done, tail, (counts > done).to(counts.dtype), min(num_experts, pairs))
    return large, small
