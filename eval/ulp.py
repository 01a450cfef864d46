"""Distance between float32 values in units of the last place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.engine.api import Float32Array


def ulp_distance(left: Float32Array, right: Float32Array) -> npt.NDArray[np.int64]:
    """[N] int64, how many float32 values lie from one to the other; 0 only for equal bits, -1 beside a NaN.

    -0.0 and 0.0 are neighbours, so that every difference of bits counts.
    """
    distance: npt.NDArray[np.int64] = np.abs(_place_on_line(left) - _place_on_line(right))
    distance[np.isnan(left) | np.isnan(right)] = -1
    distance[left.view(np.uint32) == right.view(np.uint32)] = 0
    return distance


def ulp_histogram(distances: npt.NDArray[np.int64]) -> dict[str, int]:
    """Counts by distance: ``1``, ``2``, ``3-4``, ``5-8`` and so on, and ``nan``; equal bits are left out."""
    counts = {"nan": int(np.count_nonzero(distances < 0))}
    low = 1
    high = 1
    largest = int(distances.max(initial=0))
    while low <= largest:
        inside = int(np.count_nonzero((distances >= low) & (distances <= high)))
        counts[str(low) if low == high else f"{low}-{high}"] = inside
        low, high = high + 1, high * 2
    return {name: count for name, count in counts.items() if count}


def _place_on_line(values: Float32Array) -> npt.NDArray[np.int64]:
    """Integers in the order of the values: sign and magnitude bits become one line through both zeros."""
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.int64)
    magnitude = bits & 0x7FFFFFFF
    place: npt.NDArray[np.int64] = np.where(bits >> 31 == 1, -magnitude - 1, magnitude)
    return place
