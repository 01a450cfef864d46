"""Operands of products that a chip takes in FP4 and FP8 as they are, with e8m0 scales of 32 channels.

Weights are MXFP4 as a checkpoint stores them. Activations are bfloat16, which no such product takes, and
rounding them to MXFP8 would be another profile. So a row is two MXFP8 rows whose sum it is: the first holds
the nearest e4m3 values under the scale of the group, the second the rest under a sixteenth of that scale.
e4m3 has four significant bits, bfloat16 eight, so nothing is lost of a value that is at least ``2**-13`` of
the largest of its group; of a smaller one at most ``2**-21`` of that largest is.

Legend: E experts, N outputs, T rows, K channels, K' those filled up with zeros to a multiple of ``STEP``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.block_codes import ceil_pow2_exponent, power, round_e4m3, signed_e4m3
from deepinfer.kernels.gpu.elementary import copy_sign, greater, lesser, rounded
from deepinfer.kernels.gpu.expert_gemm import fast_silu
from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch

STEP = 128
"""Channels of one step of a product, whatever K is."""
_GROUP = 32
_TILE = 16


@dataclass(frozen=True)
class NativeWeights:
    """``codes`` uint8 [E, N, K' / 2], even channels in low nibbles, ``scales`` uint8 [E, N, K' / 32]."""

    codes: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True)
class SplitRows:
    """``codes`` uint8 [2, T, K'], e4m3, and ``scales`` uint8 [2, T, K' / 32], e8m0."""

    codes: torch.Tensor
    scales: torch.Tensor


def padded(channels: int) -> int:
    """K' of K."""
    return ceil_div(channels, STEP) * STEP


def pack_native(codes: torch.Tensor, scales: torch.Tensor) -> NativeWeights:
    """Weights in checkpoint order: codes uint8 [E, N, K / 2], scales uint8 [E, N, K / 32]."""
    missing = padded(2 * codes.shape[2]) - 2 * codes.shape[2]
    fill = torch.nn.functional.pad
    return NativeWeights(fill(codes, (0, missing // 2)), fill(scales, (0, missing // _GROUP)))


def stacked(upper: NativeWeights, lower: NativeWeights) -> NativeWeights:
    """The outputs of ``upper``, then those of ``lower``, expert by expert."""
    codes, scales = (upper.codes, lower.codes), (upper.scales, lower.scales)
    return NativeWeights(torch.cat(codes, 1), torch.cat(scales, 1))


def joined(weights: list[NativeWeights]) -> NativeWeights:
    """The experts of all ``weights``, one after the other."""
    return NativeWeights(torch.cat([w.codes for w in weights]), torch.cat([w.scales for w in weights]))


@device
def _store_parts(
    value: Block, codes: Ptr, scales: Ptr, group: Block, channel: Block, num_groups: Block
) -> None:
    """Groups [G, 32] of float32 that bfloat16 holds, as both their parts; ``channel`` [G, 32] counts all."""
    largest = tl.max(tl.abs(value), axis=1)
    broken = tl.max(((value != value) | (tl.abs(value) == float("inf"))).to(tl.int32), axis=1) > 0
    # the smallest scale leaves room for a sixteenth of it
    exponent = tl.maximum(ceil_pow2_exponent(greater(largest, 1e-35) * 0.0022321429569274187), 5)
    scaled = value * power(254 - exponent)[:, None]
    near = round_e4m3(tl.abs(scaled))
    rest = scaled - copy_sign(near, scaled)
    known, behind = channel < num_groups * 32, num_groups * 32
    tl.store(codes + channel, signed_e4m3(scaled, near).to(tl.uint8), known)
    tl.store(codes + behind + channel, signed_e4m3(rest, tl.abs(rest) * 16.0).to(tl.uint8), known)
    # a group with NaN or infinity is NaN as a whole: scale 255
    first, second = tl.where(broken, 255, exponent), tl.where(broken, 255, exponent - 4)
    tl.store(scales + group, first.to(tl.uint8), group < num_groups)
    tl.store(scales + num_groups + group, second.to(tl.uint8), group < num_groups)


@kernel
def _split_kernel(
    x: Ptr, codes: Ptr, scales: Ptr, num_rows: int, width: int, given: int, TILE: tl.constexpr
) -> None:
    """Rows of ``given`` channels, filled up with zeros to ``width``."""
    num_groups = tl.cast(num_rows, tl.int64) * (width // 32)
    group = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    channel = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    row, own = channel // width, channel % width
    value = tl.load(x + row * given + own, (row < num_rows) & (own < given), other=0.0).to(tl.float32)
    _store_parts(value, codes, scales, group, channel, num_groups)


@kernel
def _inner_kernel(
    x: Ptr,
    shares: Ptr,
    codes: Ptr,
    scales: Ptr,
    limit: float,
    num_rows: int,
    width: int,
    given: int,
    TILE: tl.constexpr,
    CLAMP: tl.constexpr,
) -> None:
    """``silu(gate) * up * share`` of rows that hold ``given`` gates and then as many ups."""
    num_groups = tl.cast(num_rows, tl.int64) * (width // 32)
    group = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    channel = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    row, own = channel // width, channel % width
    known, source = (row < num_rows) & (own < given), x + row * 2 * given + own
    g = tl.load(source, known, other=0.0).to(tl.float32)
    u = tl.load(source + given, known, other=0.0).to(tl.float32)
    if CLAMP:
        g, u = lesser(g, limit), greater(lesser(u, limit), -limit)
    h = fast_silu(g) * u * tl.load(shares + row, row < num_rows, other=0.0)
    _store_parts(rounded(h, True), codes, scales, group, channel, num_groups)


def _empty(count: int, width: int, place: torch.device) -> SplitRows:
    codes = torch.empty(2, count, width, dtype=torch.uint8, device=place)
    return SplitRows(codes, torch.empty(2, count, width // _GROUP, dtype=torch.uint8, device=place))


def split_rows(x: torch.Tensor) -> SplitRows:
    """The two MXFP8 rows of every row of ``x`` bfloat16 [T, K]."""
    count, given = x.shape
    found = _empty(count, padded(given), x.device)
    grid = (ceil_div(found.scales[0].numel(), _TILE),)
    arguments = (x.contiguous(), found.codes, found.scales, count, padded(given), given)
    launch(_split_kernel, grid, *arguments, TILE=_TILE)
    return found


def split_inner(products: torch.Tensor, shares: torch.Tensor, limit: float) -> SplitRows:
    """The two MXFP8 rows of what goes into the down product.

    Args:
        products: bfloat16 [P, 2 I], gates and then ups.
        shares: float32 with P values.
        limit: of the clamp, none if it is not positive.
    """
    count, given = len(products), products.shape[1] // 2
    found = _empty(count, padded(given), products.device)
    grid = (ceil_div(found.scales[0].numel(), _TILE),)
    arguments = (products, shares.contiguous(), found.codes, found.scales, limit, count, padded(given), given)
    launch(_inner_kernel, grid, *arguments, TILE=_TILE, CLAMP=limit > 0)
    return found
