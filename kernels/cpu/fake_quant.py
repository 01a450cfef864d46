"""Cache round trips: quantise to MXFP8, MXFP4 or FP4 with e4m3 scales and back, in place.

model.md section 8.

All three only round, so the result is exact and the same in every implementation; ``engine.formats`` holds
the packed bytes of the same formats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import bits_of, float_of
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]

MXFP8, MXFP4, FP4_E4M3 = 0, 1, 2
_GROUPS = {MXFP8: 32, MXFP4: 32, FP4_E4M3: 16}

_INV_448 = np.float32(1.0) / np.float32(448.0)
_INV_6 = np.float32(1.0) / np.float32(6.0)
_FLOOR_MXFP8 = np.float32(1e-4)
_FLOOR_MXFP4 = np.float32(6.0 * 2.0**-126)
_FLOOR_FP4 = np.float32(6.0 * 2.0**-9)
_SIX, _MAX_E4M3 = np.float32(6.0), np.float32(448.0)
_E4M3_NORMAL = np.float32(2.0**-6)
_GRID_2M9 = np.float32(
    1.5 * 2.0 ** (23 - 9)
)  # adding and subtracting it rounds to multiples of 2**-9, ties to even
_GRID_HALF = np.float32(1.5 * 2.0**22)
_GRID_ONE = np.float32(1.5 * 2.0**23)
_GRID_TWO = np.float32(1.5 * 2.0**24)
_TWO, _FOUR = np.float32(2.0), np.float32(4.0)


@inlined
def _round_e4m3(magnitude: np.float32) -> np.float32:
    """Nearest e4m3 value of a magnitude, ties to even, saturating at 448."""
    bits = bits_of(magnitude)
    normal = float_of(
        (bits + np.int32(0x7FFFF) + ((bits >> np.int32(20)) & np.int32(1))) & np.int32(-0x100000)
    )
    tiny = (magnitude + _GRID_2M9) - _GRID_2M9
    return min(tiny if magnitude < _E4M3_NORMAL else normal, _MAX_E4M3)


@inlined
def _round_e2m1(magnitude: np.float32) -> np.float32:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code, saturating at 6."""
    clamped = min(magnitude, _SIX)
    half = (clamped + _GRID_HALF) - _GRID_HALF
    one = (clamped + _GRID_ONE) - _GRID_ONE
    two = (clamped + _GRID_TWO) - _GRID_TWO
    return half if clamped < _TWO else (one if clamped < _FOUR else two)


@inlined
def _ceil_pow2_exponent(v: np.float32) -> np.int32:
    """Biased exponent e of the smallest power of two 2**(e - 127) that is at least ``v`` > 0."""
    return np.int32(((bits_of(v) - np.int32(1)) >> np.int32(23)) + np.int32(1))


@inlined
def _power(exponent: np.int32) -> np.float32:
    """2**(exponent - 127) for 1 <= exponent <= 254."""
    return np.float32(float_of(exponent << np.int32(23)))


@inlined
def _group_fp4(x: Float32, amax: np.float32) -> None:
    scale = _round_e4m3(min(max(amax, _FLOOR_FP4) / _SIX, _MAX_E4M3))
    for i in range(x.shape[0]):
        x[i] = np.copysign(_round_e2m1(abs(x[i] / scale)) * scale, x[i])


@inlined
def _group_mxfp4(x: Float32, amax: np.float32) -> None:
    exponent = _ceil_pow2_exponent(max(amax, _FLOOR_MXFP4) * _INV_6)
    scale, inverse = _power(exponent), _power(np.int32(254) - exponent)
    for i in range(x.shape[0]):
        x[i] = np.copysign(_round_e2m1(abs(x[i] * inverse)) * scale, x[i])


@inlined
def _group_mxfp8(x: Float32, amax: np.float32) -> None:
    exponent = _ceil_pow2_exponent(max(amax, _FLOOR_MXFP8) * _INV_448)
    scale, inverse = _power(exponent), _power(np.int32(254) - exponent)
    for i in range(x.shape[0]):
        x[i] = np.copysign(_round_e4m3(abs(x[i] * inverse)) * scale, x[i])


@kernel
def _round_trip_kernel(x: Float32, kind: int, group: int, low: int, high: int) -> None:
    for row in range(low, high):
        for start in range(0, x.shape[1], group):
            part = x[row, start : start + group]
            amax = np.float32(0.0)
            for i in range(part.shape[0]):
                amax = max(amax, abs(part[i]))
            if kind == FP4_E4M3:
                _group_fp4(part, amax)
            elif kind == MXFP4:
                _group_mxfp4(part, amax)
            else:
                _group_mxfp8(part, amax)


def round_trip_(x: torch.Tensor, kind: int, workers: Workers) -> torch.Tensor:
    """Replace every row of ``x`` float32 [..., C] by what its cache record would give back; returns ``x``.

    Args:
        x: contiguous; C a multiple of the group (32, or 16 for ``FP4_E4M3``); finite.
        kind: ``MXFP8``, ``MXFP4`` or ``FP4_E4M3``.
    """
    group = _GROUPS[kind]
    if x.shape[-1] % group or not x.is_contiguous():
        raise ValueError(f"round_trip_: width {x.shape[-1]} must be a multiple of {group} and x contiguous")
    rows = x.view(-1, x.shape[-1]).numpy()
    workers.run(rows.shape[0], 1, lambda low, high: _round_trip_kernel(rows, kind, group, low, high))
    return x
