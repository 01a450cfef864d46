"""Samples one token per row: temperature, filters, integer weights, and a draw in lanes.

The rule (engine.md sections 7.1 and 7.3), all of it in one row:

1. ``z_v = (l_v - M) / temperature``, ``e_v = exp(z_v)``.
2. Three filters look at this full distribution, never at what another filter left. Each keeps a prefix of
   the tokens by descending logit (ties: lower id first), so their order does not matter: the shortest wins.
   top_k: the first k. top_p: tokens before which at most ``floor(top_p * 2**31)`` stands, probabilities
   counted as ``floor(p_v * 2**31)``. min_p: ``z_v >= log(min_p)``, which is p_v >= min_p * max p; on the
   logarithms, because exp is not monotone in its last bit.
3. ``t`` = sum of the kept ``e_v`` in the order of log-softmax; processed log-probability ``z_v - log(t)``.
4. Weights ``floor((e_v / t) * 2**31)`` and the draw of ``draw``.

Temperature zero takes the largest logit, lowest id first, and needs no random word.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import exp, log
from deepinfer.kernels.cpu.logprobs import BLOCK, block_sum, largest_of
from deepinfer.kernels.cpu.prefix_cut import zero_beyond
from deepinfer.kernels.cpu.selection import NUM_BINS, ordered
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
MAX_LANES = 2048
_LANES_FROM = 8192  # vocabularies from here on use MAX_LANES
_ZERO, _ONE, _UNIT = np.float32(0.0), np.float32(1.0), np.float32(2147483648.0)


def num_lanes(vocabulary: int) -> int:
    """Lanes of the draw; lane c holds the ids c, c + lanes, c + 2 * lanes and so on."""
    return MAX_LANES if vocabulary >= _LANES_FROM else 1 << (vocabulary - 1).bit_length()


@inlined
def draw(weights: Int64, words: Int64, lanes: Int64) -> int:
    """The token that the first accepted word points at, lane by lane (engine.md section 7.3).

    Words at or above the largest multiple of the total are rejected, so all remainders are equally likely. If
    every word is rejected the last one is used: with 16 words that happens less than once in 2**16 draws,
    and moves no probability by more than the rejected words are uneven.

    Args:
        weights: int64 [V], in units of 2**-31; total between 1 and 2**32 - 1.
        words: [n] 32-bit words.
        lanes: scratch [num_lanes(V)].
    """
    count = lanes.shape[0]
    for c in range(count):
        lanes[c] = 0
    for first in range(0, weights.shape[0], count):
        part = weights[first : first + count]
        for c in range(part.shape[0]):
            lanes[c] += part[c]
    total = np.int64(0)
    for c in range(count):
        total += lanes[c]
    limit = 0xFFFFFFFF // total * total
    word = words[0]
    for i in range(1, words.shape[0]):
        if word < limit:
            break
        word = words[i]
    rest = word % total
    token = 0
    while rest >= lanes[token]:
        rest -= lanes[token]
        token += 1
    while rest >= weights[token]:
        rest -= weights[token]
        token += count
    return token


@inlined
def _greedy(line: Float32, largest: np.float32) -> int:
    """Lowest id with the largest logit; -1 if a logit is NaN or the largest is infinite."""
    token = -1
    for v in range(line.shape[0] - 1, -1, -1):
        if line[v] != line[v]:
            return -1
        if line[v] == largest:
            token = v
    return token if abs(largest) < np.inf else -1


@inlined
def _to_weights(masses: Float32, total: np.float32, weights: Int64) -> None:
    """``floor((mass / total) * 2**31)``."""
    for v in range(weights.shape[0]):
        weights[v] = np.int64(masses[v] / total * _UNIT)


@kernel
def _sample_kernel(
    logits: Float32,
    temperature: Float32,
    top_p: Float32,
    top_k: Int64,
    min_p: Float32,
    words: Int64,
    lane_count: int,
    ids: Int64,
    logprobs: Float32,
    low: int,
    high: int,
) -> None:
    vocabulary = logits.shape[1]
    num_blocks = -(-vocabulary // BLOCK)
    masses, sums = np.zeros(num_blocks * BLOCK, np.float32), np.empty(num_blocks, np.float32)
    scaled, keys = np.empty(vocabulary, np.float32), np.empty(vocabulary, np.int32)
    weights, pool = np.empty(vocabulary, np.int64), np.empty(vocabulary, np.int64)
    bins, lanes = np.empty(NUM_BINS, np.int64), np.empty(lane_count, np.int64)
    for row in range(low, high):
        line, heat = logits[row], temperature[row]
        largest = largest_of(line)
        if heat == _ZERO:
            ids[row], logprobs[row] = _greedy(line, largest), _ZERO
            continue
        for v in range(vocabulary):
            scaled[v] = (line[v] - largest) / heat
        for v in range(vocabulary):
            masses[v] = exp(scaled[v])
        total = block_sum(masses, sums)
        if not total < np.inf:  # NaN too
            ids[row], logprobs[row] = -1, np.float32(np.nan)
            continue
        cuts_count, cuts_mass = 0 < top_k[row] < vocabulary, top_p[row] < _ONE
        if cuts_count or cuts_mass:
            for v in range(vocabulary):
                keys[v] = ordered(line[v])
        if cuts_mass:
            _to_weights(masses, total, weights)
            zero_beyond(keys, weights, int(top_p[row] * _UNIT), pool, bins, masses)
        if cuts_count:
            for v in range(vocabulary):
                weights[v] = 1
            zero_beyond(keys, weights, top_k[row] - 1, pool, bins, masses)
        if min_p[row] > _ZERO:
            floor = log(min_p[row])
            for v in range(vocabulary):
                masses[v] = masses[v] if scaled[v] >= floor else _ZERO
        total = block_sum(masses, sums)
        _to_weights(masses, total, weights)
        token = draw(weights, words[row], lanes)
        ids[row], logprobs[row] = token, scaled[token] - log(total)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    min_p: torch.Tensor,
    words: torch.Tensor,
    workers: Workers,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``interface.Ops.sample``."""
    source = logits.contiguous().numpy()
    rows, vocabulary = source.shape
    heat, mass, count, floor, random = (
        t.contiguous().numpy() for t in (temperature, top_p, top_k, min_p, words)
    )
    ids, logprobs, lanes = np.empty(rows, np.int64), np.empty(rows, np.float32), num_lanes(vocabulary)
    workers.run(
        rows,
        1,
        lambda low, high: _sample_kernel(
            source, heat, mass, count, floor, random, lanes, ids, logprobs, low, high
        ),
        item_cost=100 * vocabulary,
    )
    return torch.from_numpy(ids), torch.from_numpy(logprobs)
