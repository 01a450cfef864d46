"""What a step begins with, halves of pairs and confidences against the ops they stand for; prints JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
from exact_interpreter import make_exact

make_exact()

from deepinfer.kernels import chains, record_chains  # noqa: E402
from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.gpu.pointwise import confidences  # noqa: E402

DRAW = torch.Generator().manual_seed(3)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW)


def same(found: Any, wanted: Any) -> bool:
    """Bytes of all tensors."""
    pairs = zip(found, wanted, strict=True)
    return all(a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs)


def halves(ops: Any, width: int, are_moved: bool) -> bool:
    """Pairs of rows and of what waits; places, and none; ``are_moved``: one partner is another."""
    rows, places = 5, 7
    given = [normal(rows, width), normal(rows, width), normal(places, width), normal(places, width)]
    pairs = torch.tensor([[0, 1], [rows + 2, 2], [rows + 6, rows], [4, 4]])
    kept = torch.tensor([3, -1, 2, 0]), torch.tensor([4, 1, 0, 3])
    ours, theirs = ([one.clone() for one in given] for _ in range(2))
    wanted = chains.pool_waiting(ops, *theirs, pairs, *kept)
    asked = pairs.clone()
    asked[1, 0] += are_moved
    found = ops.pool_waiting(*ours, asked, *kept)
    return same((found, *(one[:-1] for one in ours)), (wanted, *(one[:-1] for one in theirs)))


def windows(ops: Any, size: int, num_blocks: int, shift: int) -> bool:
    """Windows that reach into histories, rows and nowhere; ``shift`` moves the rows' records."""
    history, ring = torch.randperm(40, generator=DRAW)[:9], torch.arange(4) * 3 + 50
    seen = torch.randint(-1, 13, (4, size), generator=DRAW)
    tables, owner = (
        torch.randint(0, 90, (3, num_blocks + 2), generator=DRAW)[:, 2:],
        torch.tensor([2, 0, 0, 1]),
    )
    wanted = record_chains.window_places(ops, history, ring, seen, tables, owner)
    return same(ops.window_places(history, ring + shift, seen, tables, owner), wanted)


def main() -> None:
    """Each with a control that must differ."""
    ops, found = select_ops("triton", bf16=True), {}
    for width in (32, 300):
        found[f"halves {width}"] = halves(ops, width, False), halves(ops, width, True)
    for size, num_blocks in ((8, 3), (11, 270)):
        found[f"windows {size}"] = windows(ops, size, num_blocks, 0), windows(ops, size, num_blocks, 1)
    embedding, ids = normal(20, 300), torch.tensor([3, 19, 0])
    given = ops.first_streams(embedding, ids, 4)
    other = chains.first_streams(ops, embedding, ids + 1 - 2 * (ids == 19), 4)
    found["streams"] = same(given, chains.first_streams(ops, embedding, ids, 4)), same(given, other)
    scores = torch.tensor([[-70.0, 3.0, 61.0], [float("nan"), -60.0, 0.25]])
    kept = scores.clamp(-60.0, 60.0)
    wide = confidences(scores, 60.0)
    found["confidences"] = same(wide, (kept, ops.sigmoid(kept))), same(confidences(scores, 50.0), wide)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
