"""What follows the product of a latent in one launch, profile fast: norm, rotation, and the MXFP8 round trip.

The same operations in the same order as ``row_sums.rms_norm``, ``rope.rotate_`` and
``fake_quant.round_trip_``, so the same bits; in a decode turn a launch costs more than its work.

Legend: T rows, C channels of a latent.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.block_codes import mxfp8_exponent, power, round_e4m3
from deepinfer.kernels.gpu.elementary import copy_sign, rounded, rsqrt
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.operands import Rotary

GROUP = 32
"""Channels that share a scale."""
MOST = 4096
"""Channels of a latent that one tile holds."""


@device
def _given_back(z: Block, exponent: Block) -> Block:
    """``z`` as its record gives it back."""
    magnitude = round_e4m3(tl.abs(z * power(254 - exponent))) * power(exponent)
    return copy_sign(magnitude, z)


@kernel
def _latent_kernel(
    x: Ptr,
    gain: Ptr,
    cos: Ptr,
    sin: Ptr,
    positions: Ptr,
    out: Ptr,
    eps: float,
    width: int,
    num_pairs: int,
    TILE: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    MXFP8: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One row; behind the sum of squares it is held as pairs, a line for each group."""
    if EARLY:
        after_launches_before()
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    line = x + row * width
    squares = tl.zeros((TILE,), tl.float32)
    value = tl.load(line + lane, lane < width, other=0.0)
    squares = tl.fma(value, value, squares)
    mean = tl.div_rn(tl.sum(squares, axis=0), tl.full((), 0.0, tl.float32) + width)
    scale = rsqrt(mean + eps)
    d = tl.arange(0, GROUPS)[:, None] * GROUP + 2 * tl.arange(0, GROUP // 2)[None, :]
    inside = d < width
    weight0, weight1 = tl.load(gain + d, inside, other=0.0), tl.load(gain + d + 1, inside, other=0.0)
    y0 = rounded(tl.load(line + d, inside, other=0.0) * scale * weight0, BF16)
    y1 = rounded(tl.load(line + d + 1, inside, other=0.0) * scale * weight1, BF16)
    pair = d // 2 - (width // 2 - num_pairs)
    turns = inside & (pair >= 0)
    table = tl.load(positions + row) * num_pairs + pair
    c, s = tl.load(cos + table, turns, other=0.0), tl.load(sin + table, turns, other=0.0)
    z0 = tl.where(turns, rounded(tl.fma(y0, c, -(y1 * s)), BF16), y0)
    z1 = tl.where(turns, rounded(tl.fma(y0, s, y1 * c), BF16), y1)
    if MXFP8:
        amax = tl.maximum(tl.max(tl.abs(z0), axis=1), tl.max(tl.abs(z1), axis=1))
        exponent = mxfp8_exponent(amax[:, None])
        z0, z1 = _given_back(z0, exponent), _given_back(z1, exponent)
    place = out + row * width + d
    tl.store(place, z0, inside)
    tl.store(place + 1, z1, inside)


def fits(width: int) -> bool:
    """Whether latents of this width are held by one tile of whole groups."""
    return width % GROUP == 0 and width <= MOST


def latent(x: torch.Tensor, gain: torch.Tensor, eps: float, rotary: Rotary, mxfp8: bool) -> torch.Tensor:
    """Norm of ``x`` float32 [T, C], its last channels rotated, every group rounded if ``mxfp8``: [T, C].

    Raises:
        ValueError: C is no multiple of 32, or more than 4,096.
    """
    rows, width = x.contiguous(), x.shape[1]
    if not fits(width):
        raise ValueError(f"latent: width {width} must be a multiple of {GROUP}, at most {MOST}")
    out = torch.empty_like(rows)
    launch(
        _latent_kernel,
        (len(rows),),
        *(rows, gain.contiguous(), rotary.cos, rotary.sin, rotary.positions, out),
        *(eps, width, rotary.cos.shape[1]),
        TILE=power_of_two(width),
        GROUPS=power_of_two(width // GROUP),
        GROUP=GROUP,
        MXFP8=mxfp8,
        BF16=True,
    )
    return out
