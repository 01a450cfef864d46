"""Scalar steps of the block formats on the device, as in ``kernels/cpu/block_codes.py``."""

from __future__ import annotations

import triton.language as tl

from deepinfer.kernels.gpu.elementary import bits_of, copy_sign, float_of, greater, lesser
from deepinfer.kernels.gpu.launching import Block, device

_INV_448: tl.constexpr = tl.constexpr(0.0022321429569274187)  # float32(1) / float32(448)
_INV_6: tl.constexpr = tl.constexpr(0.1666666716337204)  # float32(1) / float32(6)
_FLOOR_MXFP8: tl.constexpr = tl.constexpr(1e-4)
_FLOOR_MXFP4: tl.constexpr = tl.constexpr(6.0 * 2.0**-126)
_FLOOR_FP4: tl.constexpr = tl.constexpr(6.0 * 2.0**-9)
_GRID_2M9: tl.constexpr = tl.constexpr(1.5 * 2.0**14)
_GRID_HALF: tl.constexpr = tl.constexpr(1.5 * 2.0**22)
_GRID_ONE: tl.constexpr = tl.constexpr(1.5 * 2.0**23)
_GRID_TWO: tl.constexpr = tl.constexpr(1.5 * 2.0**24)


@device
def round_e4m3(magnitude: Block) -> Block:
    """Nearest e4m3 value of a magnitude, ties to even, saturating at 448."""
    bits = bits_of(magnitude)
    normal = float_of((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000)
    tiny = (magnitude + _GRID_2M9) - _GRID_2M9
    return lesser(tl.where(magnitude < 0.015625, tiny, normal), 448.0)


@device
def round_e2m1(magnitude: Block) -> Block:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code, saturating at 6."""
    clamped = lesser(magnitude, 6.0)
    half = (clamped + _GRID_HALF) - _GRID_HALF
    one = (clamped + _GRID_ONE) - _GRID_ONE
    two = (clamped + _GRID_TWO) - _GRID_TWO
    return tl.where(clamped < 2.0, half, tl.where(clamped < 4.0, one, two))


@device
def code_e4m3(value: Block) -> Block:
    """The code 0 to 126 of a non-negative e4m3 value."""
    return tl.where(value < 0.015625, (value * 512.0).to(tl.int32), (bits_of(value) >> 20) - 960)


@device
def code_e2m1(value: Block) -> Block:
    """The code 0 to 7 of a non-negative e2m1 value."""
    return tl.where(value < 1.0, (value + value).to(tl.int32), (bits_of(value) >> 22) - 252)


@device
def ceil_pow2_exponent(v: Block) -> Block:
    """Biased exponent of the smallest power of two that is at least ``v`` > 0."""
    return ((bits_of(v) - 1) >> 23) + 1


@device
def power(exponent: Block) -> Block:
    """2**(exponent - 127) for 1 <= exponent <= 254."""
    return float_of(exponent << 23)


@device
def mxfp8_exponent(amax: Block) -> Block:
    """The e8m0 scale byte of an MXFP8 group with largest magnitude ``amax``."""
    return ceil_pow2_exponent(greater(amax, _FLOOR_MXFP8) * _INV_448)


@device
def mxfp4_exponent(amax: Block) -> Block:
    """The e8m0 scale byte of an MXFP4 group."""
    return ceil_pow2_exponent(greater(amax, _FLOOR_MXFP4) * _INV_6)


@device
def fp4_scale(amax: Block) -> Block:
    """The e4m3 scale of an FP4 group, as its value."""
    sixth = tl.div_rn(greater(amax, _FLOOR_FP4), tl.full(amax.shape, 6.0, tl.float32))
    return round_e4m3(lesser(sixth, 448.0))


@device
def quotient(x: Block, scale: Block) -> Block:
    """``abs(x / scale)``, any NaN as the quiet one of the CPU."""
    y = tl.abs(tl.div_rn(x, tl.broadcast_to(scale, x.shape)))
    return tl.where(y == y, y, float_of(tl.full(y.shape, 0x7FC00000, tl.int32)))


@device
def signed_e4m3(x: Block, magnitude: Block) -> Block:
    """The e4m3 code nearest to ``magnitude``, with the sign of ``x``."""
    return code_e4m3(round_e4m3(magnitude)) | ((bits_of(x) >> 24) & 128)


@device
def signed_e2m1(x: Block, magnitude: Block) -> Block:
    """The e2m1 code nearest to ``magnitude``, with the sign of ``x``."""
    return code_e2m1(round_e2m1(magnitude)) | ((bits_of(x) >> 28) & 8)


@device
def value_e4m3(codes: Block) -> Block:
    """The value of e4m3 codes, int32 0 to 255; 127 and 255, which no record holds, give 480."""
    magnitude = codes & 127
    tiny = magnitude.to(tl.float32) * 0.001953125
    normal = float_of((magnitude + 960) << 20)
    return copy_sign(tl.where(magnitude < 8, tiny, normal), float_of(codes << 24))


@device
def value_e2m1(codes: Block) -> Block:
    """The value of e2m1 codes, int32 0 to 15."""
    magnitude = codes & 7
    normal = float_of((magnitude + 252) << 22)
    return copy_sign(tl.where(magnitude < 2, magnitude.to(tl.float32) * 0.5, normal), float_of(codes << 28))
