"""Scalar steps of the block formats, shared by round trips and packed records (model.md section 8).

A number appears as the *value* it rounds to, a float32, or as the *code* that a record stores. Every step is
exact or one rounding to nearest even, made with IEEE operations and bit patterns, so all machines agree.
"""

from __future__ import annotations

import numpy as np

from deepinfer.kernels.cpu.compiled import inlined
from deepinfer.kernels.cpu.elementary import bits_of, float_of

_INV_448 = np.float32(1.0) / np.float32(448.0)
_INV_6 = np.float32(1.0) / np.float32(6.0)
_FLOOR_MXFP8 = np.float32(1e-4)
_FLOOR_MXFP4 = np.float32(6.0 * 2.0**-126)
_FLOOR_FP4 = np.float32(6.0 * 2.0**-9)
_SIX, _MAX_E4M3 = np.float32(6.0), np.float32(448.0)
_E4M3_NORMAL, _E4M3_STEPS = np.float32(2.0**-6), np.float32(2.0**9)
_GRID_2M9 = np.float32(
    1.5 * 2.0 ** (23 - 9)
)  # adding and subtracting it rounds to multiples of 2**-9, ties to even
_GRID_HALF = np.float32(1.5 * 2.0**22)
_GRID_ONE = np.float32(1.5 * 2.0**23)
_GRID_TWO = np.float32(1.5 * 2.0**24)
_ONE, _TWO, _FOUR = np.float32(1.0), np.float32(2.0), np.float32(4.0)


@inlined
def round_e4m3(magnitude: np.float32) -> np.float32:
    """Nearest e4m3 value of a magnitude, ties to even, saturating at 448."""
    bits = bits_of(magnitude)
    normal = float_of(
        (bits + np.int32(0x7FFFF) + ((bits >> np.int32(20)) & np.int32(1))) & np.int32(-0x100000)
    )
    tiny = (magnitude + _GRID_2M9) - _GRID_2M9
    return min(tiny if magnitude < _E4M3_NORMAL else normal, _MAX_E4M3)


@inlined
def round_e2m1(magnitude: np.float32) -> np.float32:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code, saturating at 6."""
    clamped = min(magnitude, _SIX)
    half = (clamped + _GRID_HALF) - _GRID_HALF
    one = (clamped + _GRID_ONE) - _GRID_ONE
    two = (clamped + _GRID_TWO) - _GRID_TWO
    return half if clamped < _TWO else (one if clamped < _FOUR else two)


@inlined
def code_e4m3(value: np.float32) -> np.int32:
    """The code 0 to 126 of a non-negative e4m3 value: a count of 2**-9 below 2**-6, else rebiased bits."""
    normal = (bits_of(value) >> np.int32(20)) - np.int32(120 << 3)
    return np.int32(value * _E4M3_STEPS) if value < _E4M3_NORMAL else normal


@inlined
def code_e2m1(value: np.float32) -> np.int32:
    """The code 0 to 7 of a non-negative e2m1 value."""
    normal = (bits_of(value) >> np.int32(22)) - np.int32(126 << 1)
    return np.int32(value + value) if value < _ONE else normal


@inlined
def ceil_pow2_exponent(v: np.float32) -> np.int32:
    """Biased exponent e of the smallest power of two 2**(e - 127) that is at least ``v`` > 0."""
    return np.int32(((bits_of(v) - np.int32(1)) >> np.int32(23)) + np.int32(1))


@inlined
def power(exponent: np.int32) -> np.float32:
    """2**(exponent - 127) for 1 <= exponent <= 254."""
    return np.float32(float_of(exponent << np.int32(23)))


@inlined
def mxfp8_exponent(amax: np.float32) -> np.int32:
    """The e8m0 scale byte of an MXFP8 group with largest magnitude ``amax`` (section 8.2)."""
    return ceil_pow2_exponent(max(amax, _FLOOR_MXFP8) * _INV_448)


@inlined
def mxfp4_exponent(amax: np.float32) -> np.int32:
    """The e8m0 scale byte of an MXFP4 group (section 8.3)."""
    return ceil_pow2_exponent(max(amax, _FLOOR_MXFP4) * _INV_6)


@inlined
def fp4_scale(amax: np.float32) -> np.float32:
    """The e4m3 scale of an FP4 group, as its value (section 8.4)."""
    return round_e4m3(min(max(amax, _FLOOR_FP4) / _SIX, _MAX_E4M3))


@inlined
def signed_e4m3(x: np.float32, scaled: np.float32) -> np.int32:
    """The e4m3 code, 0 to 255, nearest to ``scaled`` in magnitude, with the sign of ``x``."""
    sign = (bits_of(x) >> np.int32(24)) & np.int32(128)
    return np.int32(code_e4m3(round_e4m3(abs(scaled))) | sign)


@inlined
def signed_e2m1(x: np.float32, scaled: np.float32) -> np.int32:
    """The e2m1 code, 0 to 15, nearest to ``scaled`` in magnitude, with the sign of ``x``."""
    sign = (bits_of(x) >> np.int32(28)) & np.int32(8)
    return np.int32(code_e2m1(round_e2m1(abs(scaled))) | sign)
