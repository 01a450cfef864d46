"""Bitwise comparison of arrays: are all bytes equal, and if not, where and by how much do they first differ.

NaN payloads and the sign of zero count, which ``==`` and ``torch.equal`` get wrong in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first element, in row-major order, whose bytes differ.

    Attributes:
        flat_index: index into the flattened arrays.
        coordinates: the same index, one number per axis.
        left_hex: bits of the left element, most significant digit first.
        right_hex: bits of the right element.
        left: the left value, with as many digits as tell it from its neighbours.
        right: the right value.
        ulp: representable numbers between the two (0 for 0.0 against -0.0), None for NaN and for integers.
    """

    flat_index: int
    coordinates: tuple[int, ...]
    left_hex: str
    right_hex: str
    left: str
    right: str
    ulp: int | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Outcome of comparing two arrays byte by byte.

    Attributes:
        num_compared: elements compared; 0 if the arrays cannot be compared element by element.
        num_differing: elements whose bytes differ.
        first: the first of them.
        max_abs_diff: largest absolute difference of the differing elements, NaN if none is comparable, 0.0 if
            no element differs.
        mismatch: why the arrays cannot be compared element by element (shape or dtype), else None.
    """

    num_compared: int
    num_differing: int
    first: FirstDifference | None = None
    max_abs_diff: float = 0.0
    mismatch: str | None = None

    @property
    def equal(self) -> bool:
        """Whether every byte is equal, shape and dtype included."""
        return self.num_differing == 0 and self.mismatch is None


def bits(array: AnyArray) -> AnyArray:
    """The array's elements as unsigned integers of their own width; same shape."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(f"cannot compare elements of dtype {array.dtype} as bits")
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)


def compare_arrays(left: AnyArray, right: AnyArray) -> Comparison:
    """Compare two arrays byte by byte; another shape or dtype is a difference, not an error."""
    if left.dtype != right.dtype:
        return Comparison(
            num_compared=0, num_differing=0, mismatch=f"dtype {left.dtype} against {right.dtype}"
        )
    if left.shape != right.shape:
        return Comparison(
            num_compared=0, num_differing=0, mismatch=f"shape {left.shape} against {right.shape}"
        )
    differs = bits(left) != bits(right)
    num_differing = int(np.count_nonzero(differs))
    if num_differing == 0:
        return Comparison(num_compared=left.size, num_differing=0)
    return Comparison(
        num_compared=left.size,
        num_differing=num_differing,
        first=_describe(left, right, int(np.argmax(differs))),
        max_abs_diff=_max_abs_diff(left[differs], right[differs]),
    )


def ulp_distance(left: AnyArray, right: AnyArray) -> npt.NDArray[np.int64]:
    """Representable numbers between two float arrays of one dtype; -1 where either is NaN.

    For float64 the distance between numbers of opposite sign can exceed int64; it saturates.
    """
    one, other = _ordered(left), _ordered(right)
    across_zero = (one < 0) != (other < 0)
    # Across zero the distance is the sum of both magnitudes, which needs the 64th bit.
    across = np.abs(one).astype(np.uint64) + np.abs(other).astype(np.uint64)
    across = np.minimum(across, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
    same_side = np.abs(np.where(across_zero, 0, one - np.where(across_zero, one, other)))
    distance = np.where(across_zero, across, same_side)
    return np.where(np.isnan(left) | np.isnan(right), np.int64(-1), distance)


def _ordered(array: AnyArray) -> npt.NDArray[np.int64]:
    """Integers that stand in the order of the floats: neighbours differ by 1, and both zeros are 0."""
    sign_bit = 8 * array.dtype.itemsize - 1
    raw = bits(array).astype(np.uint64)
    magnitude = (raw & np.uint64((1 << sign_bit) - 1)).astype(np.int64)
    return np.where(raw >> np.uint64(sign_bit), -magnitude, magnitude)


def _describe(left: AnyArray, right: AnyArray, flat_index: int) -> FirstDifference:
    coordinates = tuple(int(i) for i in np.unravel_index(flat_index, left.shape))
    one, other = left[coordinates], right[coordinates]
    digits = 2 * left.dtype.itemsize
    ulp: int | None = None
    if left.dtype.kind == "f":
        distance = int(ulp_distance(np.array([one]), np.array([other]))[0])
        ulp = distance if distance >= 0 else None
    return FirstDifference(
        flat_index=flat_index,
        coordinates=coordinates,
        left_hex=f"0x{int(bits(np.array([one]))[0]):0{digits}x}",
        right_hex=f"0x{int(bits(np.array([other]))[0]):0{digits}x}",
        left=str(one),
        right=str(other),
        ulp=ulp,
    )


def _max_abs_diff(left: AnyArray, right: AnyArray) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(left.astype(np.float64) - right.astype(np.float64))
    comparable = gaps[~np.isnan(gaps)]
    return float(comparable.max()) if comparable.size else float("nan")
