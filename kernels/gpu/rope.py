"""Rotary embedding on adjacent pairs of the last channels, in the fma form of docs/orders.md."""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch, power_of_two

_HEADS = 8


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
    tl.store(out + place, rounded(tl.fma(x0, c, -(x1 * s)), BF16), inside)
    tl.store(out + place + 1, rounded(tl.fma(x0, s, x1 * c), BF16), inside)
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
