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


def plan_tiles(ids: torch.Tensor, num_experts: int, size: int) -> Tiles:
    """Group the pairs ``ids`` int64 [T, k] (expert numbers) into tiles of ``size``."""
    sorted_ids, order = ids.flatten().sort(stable=True)
    pairs, place = ids.numel(), ids.device
    starts = torch.searchsorted(sorted_ids, torch.arange(num_experts + 1, device=place))
    ends = torch.cumsum((starts[1:] - starts[:-1] + size - 1) // size, 0)
    count = ceil_div(pairs, size) + min(num_experts, pairs)
    tile = torch.arange(count, device=place)
    expert = torch.searchsorted(ends, tile, right=True)
    known = expert.clamp(max=num_experts - 1)
    before = torch.where(known > 0, ends[known - 1], 0)
    first = starts[known] + (tile - before) * size
    return Tiles(order, expert.to(torch.int32), first.to(torch.int32), starts[known + 1].to(torch.int32))
