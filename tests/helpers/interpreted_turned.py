"""Attention that rotates within its launch against three launches, interpreted; prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import Any, cast

import torch
from exact_interpreter import make_exact

make_exact()

from attention_cases import MODEL, Cases, separate  # noqa: E402

from deepinfer.kernels import chains  # noqa: E402
from deepinfer.kernels.attention_operands import Seen  # noqa: E402
from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.gpu import pool_attention, turned_attention  # noqa: E402
from deepinfer.kernels.gpu.rope import turned_channels  # noqa: E402

SIZES = (
    (False, 1, 4, 32, 16),
    (True, 2, 5, 96, 4),
    (False, 2, 33, 32, 1),
    (True, 1, 4, 128, 16),
)
"""Packed rows or not, rows, heads, width and pairs that rotate: few and all, tiles with room left over."""


def one_way() -> Callable[..., Any]:
    """Queries are turned, and what they find is not turned back: every second call does nothing."""
    turns = cycle((turned_channels, lambda x, *angles: x))
    return lambda *given: next(turns)(*given)


def other_partner(x: Any, *angles: Any) -> Any:
    """Pairs of channels that are no neighbours."""
    size, heads = x.shape
    apart = x.reshape(2, size // 2, heads).permute(1, 0, 2).reshape(size, heads)
    return turned_channels(apart, *angles)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Byte by byte."""
    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


def ahead(ops: Any, cases: Cases) -> list[tuple[bool, int, int]]:
    """Packed or not, window slots and chosen ones whose bytes differ if rows are asked for ahead."""
    wrong = []
    rotary, sink, q = cases.rotary(2, 8), cases.normal(4), cases.normal(2, 4, 32)
    for size in ((False, 70, 40), (True, 70, 40), (False, 20, 65), (True, 33, 0)):
        seen, found = cases.seen(size[0], 2, 32, *size[1:]), []
        for pool_attention._FEW in (0, 2):
            found.append(turned_attention.attend(q.clone(), seen, sink, rotary, ops._workspace))
        if not same(*found) or same(found[0], torch.zeros_like(q)):
            wrong.append(size)
    return wrong


def main() -> None:
    """Sublayers from input to output, then attention alone."""
    ops = cast(Any, select_ops("triton", bf16=True))
    cases, wrong, unseen = Cases(ops, 7), [], []
    for size in SIZES:
        packed, num_rows, num_heads, width, num_pairs = size
        layer, rotary = cases.sublayer(num_heads, width), cases.rotary(num_rows, num_pairs)
        seen, x = cases.seen(packed, num_rows, width), cases.normal(num_rows, MODEL)
        latents: list[torch.Tensor] = []

        def asked(latent: torch.Tensor, seen: Seen = seen, latents: list[torch.Tensor] = latents) -> Seen:
            latents.append(latent)
            return seen

        whole = ops.attention(x, layer, rotary, asked)
        parts = chains.attention(ops, x, layer, rotary, asked)
        q = cases.normal(num_rows, num_heads, width)
        given = (seen, layer.sink, rotary)
        wanted = separate(ops, q, *given)
        found = turned_attention.attend(q.clone(), *given, ops._workspace)
        if not (same(whole, parts) and same(found, wanted) and same(*latents)):
            wrong.append(size)
        later = replace(rotary, positions=rotary.positions + 1)
        if same(turned_attention.attend(q.clone(), seen, layer.sink, later, ops._workspace), wanted):
            unseen.append([*size, "position"])
        for name, other in (("way back", one_way()), ("partner", other_partner)):
            pool_attention.turned_channels = other
            damaged = turned_attention.attend(q.clone(), *given, ops._workspace)
            pool_attention.turned_channels = turned_channels
            if same(damaged, wanted):
                unseen.append([*size, name])
    print(json.dumps({"wrong": wrong, "unseen": unseen, "ahead": ahead(ops, cases)}))


if __name__ == "__main__":
    main()
