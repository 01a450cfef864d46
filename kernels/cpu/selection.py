"""Exact top-k of float32 scores with ties to the lowest index, by radix over the ordered bit patterns.

Scores are compared as numbers (-0.0 equals 0.0). The answer is a set, so no arithmetic and no order is
involved; the radix only finds the value of the k-th largest score and how many of its equals belong to the
set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.compiled import inlined
from deepinfer.kernels.cpu.elementary import bits_of, float_of

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
NUM_BINS = 256
_ZERO = np.float32(0.0)


@inlined
def ordered(score: np.float32) -> np.int32:
    """An int32 that orders like the float: negative numbers have their magnitude bits inverted.

    -0.0 becomes 0.0.
    """
    bits = bits_of(score + _ZERO)
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@inlined
def unordered(key: np.int32) -> np.float32:
    """The float that ``ordered`` maps to ``key``."""
    return np.float32(float_of(key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF))))


@inlined
def _digit(key: np.int32, level: int) -> np.int64:
    """Byte ``level`` of the unsigned order of ``key``, most significant first."""
    return ((np.int64(key) + 0x80000000) >> (24 - 8 * level)) & 0xFF


@inlined
def select_top(keys: Int32, count: int, top: int, chosen: Int32, pool: Int32, bins: Int32) -> int:
    """Write the indices of the ``top`` largest of ``keys[:count]`` to ``chosen``, ascending.

    Returns how many.

    Args:
        keys: ordered scores (see ``ordered``).
        pool: scratch int32 [>= count].
        bins: scratch int32 [NUM_BINS].
    """
    if count <= top:
        for j in range(count):
            chosen[j] = j
        return count
    wanted = top
    alive = count
    for j in range(count):
        pool[j] = keys[j]
    for level in range(4):
        for b in range(NUM_BINS):
            bins[b] = 0
        for j in range(alive):
            bins[_digit(pool[j], level)] += 1
        b = NUM_BINS - 1
        while bins[b] < wanted:
            wanted -= bins[b]
            b -= 1
        kept = 0
        for j in range(alive):
            key = pool[j]
            if _digit(key, level) == b:
                pool[kept] = key
                kept += 1
        alive = kept
    threshold = pool[0]  # every survivor equals the k-th largest; ``wanted`` of them belong to the answer
    place = 0
    for j in range(count):
        if keys[j] > threshold:
            chosen[place] = j
            place += 1
        elif keys[j] == threshold and wanted > 0:
            chosen[place] = j
            place += 1
            wanted -= 1
    return place
