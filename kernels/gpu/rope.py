"""Rotary embedding on adjacent pairs of the last channels, in the fma form of docs/orders.md."""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch, power_of_two

_HEADS = 8


@kernel
def _rotate_kernel(
    x: Ptr,
    cos: Ptr,
    sin: Ptr,
    positions: Ptr,
    num_heads: int,
    width: int,
    num_pairs: int,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pairs = tl.arange(0, PAIRS)
    table = tl.load(positions + row) * num_pairs
    c = tl.load(cos + table + pairs, pairs < num_pairs, other=0.0)[None, :]
    s = tl.load(sin + table + pairs, pairs < num_pairs, other=0.0)[None, :]
    if INVERSE:
        s = -s
    first = x + (row * num_heads + heads)[:, None] * width + (width - 2 * num_pairs + 2 * pairs)[None, :]
    inside = (heads < num_heads)[:, None] & (pairs < num_pairs)[None, :]
    x0, x1 = tl.load(first, inside, other=0.0), tl.load(first + 1, inside, other=0.0)
    c, s = tl.broadcast_to(c, (HEADS, PAIRS)), tl.broadcast_to(s, (HEADS, PAIRS))
    tl.store(first, rounded(tl.fma(x0, c, -(x1 * s)), BF16), inside)
    tl.store(first + 1, rounded(tl.fma(x0, s, x1 * c), BF16), inside)


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
    num_rows, num_heads, width = x.shape
    num_pairs = cos.shape[1]
    grid = (num_rows, ceil_div(num_heads, _HEADS))
    constants = {"INVERSE": inverse, "HEADS": _HEADS, "PAIRS": power_of_two(num_pairs), "BF16": bf16}
    launch(
        _rotate_kernel, grid, x, cos, sin, positions, num_heads, width, num_pairs, num_warps=1, **constants
    )
    return x
