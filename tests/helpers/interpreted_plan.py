"""The plan of expert tiles in one launch against the same plan by sorting, in Triton's interpreter: JSON.

A process of its own, because triton decides at its first import whether it interprets.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from exact_interpreter import make_exact

make_exact()

from deepinfer.kernels.gpu import expert_groups  # noqa: E402
from deepinfer.kernels.gpu.expert_groups import Tiles  # noqa: E402


def used(tiles: Tiles, num_experts: int) -> list[list[int]]:
    """What a plan says of the tiles that are used, and the order of pairs."""
    kept = tiles.expert < num_experts
    parts = [part[kept].tolist() for part in (tiles.expert, tiles.first, tiles.last)]
    return [tiles.order.tolist(), *parts, [len(tiles.expert)]]


def plans(ids: torch.Tensor, num_experts: int, sizes: tuple[int, int]) -> list[list[list[int]]]:
    """One size, then two."""
    pair = expert_groups.plan_two_sizes(ids, num_experts, *sizes)
    return [used(t, num_experts) for t in (expert_groups.plan_tiles(ids, num_experts, sizes[1]), *pair)]


def main() -> None:
    """Uneven choices, all for one expert, fewer pairs than a chunk and more."""
    draw, wrong = np.random.default_rng(0), []
    sound = expert_groups._is_small
    for rows, num_experts, sizes in (
        (1, 16, (128, 32)),
        (64, 16, (128, 32)),
        (150, 8, (32, 16)),
        (90, 6, (64, 16)),
    ):
        for skew in (1.0, 4.0, 40.0):
            weights = np.exp(-np.arange(num_experts) * (skew - 1))
            chosen = draw.choice(num_experts, (rows, 2), p=weights / weights.sum())
            ids = torch.from_numpy(np.sort(chosen, 1))
            fast = plans(ids, num_experts, sizes)
            expert_groups._is_small = lambda ids, num_experts: False
            slow = plans(ids, num_experts, sizes)
            expert_groups._is_small = sound
            if fast != slow:
                wrong.append([rows, num_experts, skew])
    moved = plans(torch.tensor([[0, 1], [0, 2]]), 4, (32, 16)) != plans(
        torch.tensor([[0, 1], [1, 2]]), 4, (32, 16)
    )
    print(json.dumps({"wrong": wrong, "control": moved}))


if __name__ == "__main__":
    main()
