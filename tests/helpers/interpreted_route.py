"""Router and plan in one launch against two, in Triton's interpreter; prints JSON."""

from __future__ import annotations

import json

import torch
from exact_interpreter import make_exact

make_exact()

from interpreted_plan import used  # noqa: E402

from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.gpu import route_plan, router  # noqa: E402
from deepinfer.kernels.gpu.expert_groups import plan_tiles  # noqa: E402

SIZES = ((1, 16, 2), (3, 16, 2), (8, 64, 6), (5, 40, 3), (32, 16, 1), (20, 6, 6))
"""Rows, experts and how many are chosen: rows and experts that fill the tile or not, one chosen, and all."""


def main() -> None:
    """Scores with ties among them; the strict router of the CPU is a witness of its own."""
    cpu, draw = select_ops("cpu", bf16=False, num_threads=1), torch.Generator().manual_seed(9)
    wrong, control = [], False
    for size in SIZES:
        num_rows, num_experts, num_selected = size
        logits = torch.randn(num_rows, num_experts, generator=draw).mul(4).round() / 4
        bias = torch.randn(num_experts, generator=draw).mul(4).round() / 64
        for normalise, tile in ((True, 16), (False, 4)):
            given = (logits, bias, num_selected, normalise, 1.5)
            ids, shares, tiles = route_plan.route_and_plan(*given, tile)
            known = plan_tiles(ids, num_experts, tile)
            for other in (router.route(*given), cpu.route(*given)):
                if not (
                    torch.equal(ids, other[0]) and shares.numpy().tobytes() == other[1].numpy().tobytes()
                ):
                    wrong.append([*size, "router"])
            if used(tiles, num_experts) != used(known, num_experts):
                wrong.append([*size, "plan"])
            moved = plan_tiles((ids + 1) % num_experts, num_experts, tile)
            control |= used(moved, num_experts) != used(known, num_experts)
    fits = [route_plan.fits(*size) for size in ((0, 16), (32, 16), (33, 16), (8, 64), (9, 64))]
    print(json.dumps({"wrong": wrong, "control": control, "fits": fits}))


if __name__ == "__main__":
    main()
