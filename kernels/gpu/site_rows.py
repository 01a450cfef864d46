"""The input of a sublayer in one launch, profile fast: collapse of the streams, and norm.

The same operations in the same order as ``hyper.hc_collapse`` and ``row_sums.rms_norm``, so the same bits; in
a decode turn a launch costs more than its work.

Legend: T rows, S residual streams, D model width.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded, rsqrt
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)

_TILE = 4096
"""That of ``row_sums``: it fixes the order that lanes add in."""


@device
def _collapsed(
    line: Ptr, factors: Ptr, d: Block, width: int, S: tl.constexpr, TILE: tl.constexpr, BF16: tl.constexpr
) -> Block:
    """A tile of a row of streams, summed over ascending streams; 0 past the end."""
    acc = tl.zeros((TILE,), tl.float32)
    for n in tl.static_range(S):
        factor = tl.zeros((TILE,), tl.float32) + tl.load(factors + n)
        acc = tl.fma(factor, tl.load(line + n * width + d, d < width, other=0.0), acc)
    return rounded(acc, BF16)


@kernel
def _site_row_kernel(
    streams: Ptr,
    pre: Ptr,
    gain: Ptr,
    out: Ptr,
    kept: Ptr,
    eps: float,
    width: int,
    S: tl.constexpr,
    TILE: tl.constexpr,
    BF16: tl.constexpr,
    KEEP: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One row; before its norm into ``kept`` if ``KEEP``."""
    if EARLY:
        after_launches_before()
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    line, factors = streams + row * S * width, pre + row * S
    squares = tl.zeros((TILE,), tl.float32)
    for first in range(0, width, TILE):
        value = _collapsed(line, factors, first + lane, width, S, TILE, BF16)
        squares = tl.fma(value, value, squares)
    mean = tl.div_rn(tl.sum(squares, axis=0), tl.full((), 0.0, tl.float32) + width)
    scale = rsqrt(mean + eps)
    for first in range(0, width, TILE):
        d = first + lane
        weight = tl.load(gain + d, d < width, other=0.0)
        value = _collapsed(line, factors, d, width, S, TILE, BF16)
        if KEEP:
            tl.store(kept + row * width + d, value, d < width)
        y = value * scale * weight
        tl.store(out + row * width + d, rounded(y, BF16), d < width)


def site_row(
    streams: torch.Tensor, pre: torch.Tensor, gain: torch.Tensor, eps: float, bf16: bool
) -> torch.Tensor:
    """Float32 [T, S, D] and [T, S], gain [D] -> [T, D]."""
    return _site_row(streams, pre, gain, eps, bf16, False)[1]


def collapsed_norm(
    streams: torch.Tensor, pre: torch.Tensor, gain: torch.Tensor, eps: float, bf16: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``site_row`` with what it has the norm of: both float32 [T, D]."""
    return _site_row(streams, pre, gain, eps, bf16, True)


def _site_row(
    streams: torch.Tensor, pre: torch.Tensor, gain: torch.Tensor, eps: float, bf16: bool, is_kept: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    source, factors = streams.contiguous(), pre.contiguous()
    num_rows, num_streams, width = source.shape
    out = source.new_empty(num_rows, width)
    kept = torch.empty_like(out) if is_kept else out
    launch(
        _site_row_kernel,
        (num_rows,),
        *(source, factors, gain.contiguous(), out, kept, eps, width),
        S=num_streams,
        TILE=min(_TILE, power_of_two(width)),
        BF16=bf16,
        KEEP=is_kept,
    )
    return kept, out
