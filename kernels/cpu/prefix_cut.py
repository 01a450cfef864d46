"""Cuts a distribution after a prefix of its tokens, most likely first, without sorting it.

Top-k and top-p are one rule: walk the tokens by descending logit, equal logits by ascending id, and keep a
token if the weights before it sum to at most a limit. Top-k weighs every token 1 and has the limit k - 1;
top-p weighs a token by its probability in units of 2**-31. Weights are integers, so no order of summation
exists. A radix over the ordered bit patterns finds the logit where the walk ends.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.compiled import inlined
from deepinfer.kernels.cpu.selection import NUM_BINS

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
_ZERO = np.float32(0.0)


@inlined
def _digit(key: np.int32, shift: int) -> np.int64:
    """Eight bits of the unsigned order of ``key``."""
    return ((np.int64(key) + 0x80000000) >> shift) & 0xFF


@inlined
def zero_beyond(keys: Int32, weights: Int64, limit: int, pool: Int64, bins: Int64, masses: Float32) -> None:
    """Set ``masses`` to zero for every token past the cut.

    Args:
        keys: [V], logits as ``selection.ordered`` integers.
        weights: [V], at least 0; equal keys have equal weights.
        limit: the largest sum of weights that may stand before a kept token, at least 0.
        pool: scratch [>= V].
        bins: scratch [NUM_BINS].
        masses: [>= V], changed in place.
    """
    vocabulary = keys.shape[0]
    alive = vocabulary
    for v in range(vocabulary):
        pool[v] = v
    before = np.int64(0)
    for shift in (24, 16, 8, 0):
        for b in range(NUM_BINS):
            bins[b] = 0
        for j in range(alive):
            v = pool[j]
            bins[_digit(keys[v], shift)] += weights[v]
        b = NUM_BINS - 1
        while b >= 0 and before + bins[b] <= limit:
            before += bins[b]
            b -= 1
        if b < 0:
            return  # all of the weight fits: nothing lies past the cut
        kept = 0
        for j in range(alive):
            v = pool[j]
            if _digit(keys[v], shift) == b:
                pool[kept] = v
                kept += 1
        alive = kept
    # Every survivor has the logit at which the walk ends; this many of them, lowest ids first, are kept.
    threshold, equals = keys[pool[0]], (limit - before) // weights[pool[0]] + 1
    for v in range(vocabulary):
        if keys[v] < threshold:
            masses[v] = _ZERO
        elif keys[v] == threshold:
            if equals > 0:
                equals -= 1
            else:
                masses[v] = _ZERO
