"""Rotary embedding on adjacent pairs of the last channels, in the fma form of docs/orders.md."""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
    power_of_two,
)

_HEADS = 8


@device
def turned_pair(x0: Block, x1: Block, c: Block, s: Block, BF16: tl.constexpr) -> tuple[Block, Block]:
    """Pairs turned by the angles whose cosines and sines are ``c`` and ``s``, all of one shape."""
    return rounded(tl.fma(x0, c, -(x1 * s)), BF16), rounded(tl.fma(x0, s, x1 * c), BF16)


@device
def angles_of(
    cos: Ptr,
    sin: Ptr,
    position: Block,
    num_pairs: int,
    C: tl.constexpr,
    CP: tl.constexpr,
) -> tuple[Block, Block, Block]:
    """Of each pair of C channels its cosine, its sine and whether it turns, [CP // 2, 1] each.

    The last ``num_pairs`` turn, C is even.
    """
    pair = tl.arange(0, CP // 2) - (C // 2 - num_pairs)
    turns = (pair >= 0) & (pair < num_pairs)
    at = position * num_pairs + pair
    c, s = tl.load(cos + at, turns, other=0.0), tl.load(sin + at, turns, other=0.0)
    return c[:, None], s[:, None], turns[:, None]


@device
def turned_channels(x: Block, c: Block, s: Block, turns: Block) -> Block:
    """Columns of ``x`` [CP, H], bfloat16 values of a row's heads, by the angles of ``angles_of``."""
    CP: tl.constexpr = x.shape[0]
    H: tl.constexpr = x.shape[1]
    x0, x1 = tl.split(x.reshape(CP // 2, 2, H).permute(0, 2, 1))
    y0, y1 = turned_pair(x0, x1, tl.broadcast_to(c, x0.shape), tl.broadcast_to(s, x0.shape), True)
    both = tl.join(tl.where(turns, y0, x0), tl.where(turns, y1, x1))
    return both.permute(0, 2, 1).reshape(CP, H)


@kernel
def _rotate_kernel(
    x: Ptr,
    out: Ptr,
    cos: Ptr,
    sin: Ptr,
    positions: Ptr,
    num_heads: int,
    width: int,
    num_pairs: int,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    COPIED: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Some heads of a row, from ``x`` to ``out``; COPIED, if not 0, holds all channels before those."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pairs = tl.arange(0, PAIRS)
    table = tl.load(positions + row) * num_pairs
    c = tl.load(cos + table + pairs, pairs < num_pairs, other=0.0)[None, :]
    s = tl.load(sin + table + pairs, pairs < num_pairs, other=0.0)[None, :]
    if INVERSE:
        s = -s
    head = (row * num_heads + heads)[:, None] * width
    place = head + (width - 2 * num_pairs + 2 * pairs)[None, :]
    inside = (heads < num_heads)[:, None] & (pairs < num_pairs)[None, :]
    x0, x1 = tl.load(x + place, inside, other=0.0), tl.load(x + place + 1, inside, other=0.0)
    c, s = tl.broadcast_to(c, (HEADS, PAIRS)), tl.broadcast_to(s, (HEADS, PAIRS))
    y0, y1 = turned_pair(x0, x1, c, s, BF16)
    tl.store(out + place, y0, inside)
    tl.store(out + place + 1, y1, inside)
    if COPIED > 0:
        d = tl.arange(0, COPIED)[None, :]
        inside = (heads < num_heads)[:, None] & (d < width - 2 * num_pairs)
        tl.store(out + head + d, tl.load(x + head + d, inside, other=0.0), inside)


def rotate_(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    inverse: bool,
    bf16: bool,
) -> torch.Tensor:
    """Rotate the last ``2 * cos.shape[1]`` channels of ``x`` float32 [T, heads, width] in place; returns it.

    Raises:
        ValueError: ``x`` is not contiguous.
    """
    if not x.is_contiguous():
        raise ValueError("rotate_: x must be contiguous, it is changed in place")
    _rotate(x, x, cos, sin, positions, inverse, bf16)
    return x


def rotated(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    inverse: bool,
    bf16: bool,
) -> torch.Tensor:
    """The same as a new tensor."""
    source = x.contiguous()
    out = torch.empty_like(source)
    _rotate(source, out, cos, sin, positions, inverse, bf16)
    return out


def _rotate(
    x: torch.Tensor,
    out: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    inverse: bool,
    bf16: bool,
) -> None:
    (num_rows, num_heads, width), num_pairs = x.shape, cos.shape[1]
    copied = width - 2 * num_pairs if out is not x else 0
    launch(
        _rotate_kernel,
        (num_rows, ceil_div(num_heads, _HEADS)),
        *(x, out, cos, sin, positions, num_heads, width, num_pairs),
        num_warps=4 if copied else 1,
        INVERSE=inverse,
        HEADS=_HEADS,
        PAIRS=power_of_two(num_pairs),
        COPIED=power_of_two(copied) if copied else 0,
        BF16=bf16,
    )
