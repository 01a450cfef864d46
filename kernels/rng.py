"""Random words from a counter: Philox4x32-10, the same on every platform and in every batch.

A word is a pure function of (seed, position, purpose, sample index, number of the word); no generator has a
state that another request could advance. Layout of cuRAND (engine.md section 7.2, known answers in its
Appendix A and in model.md section 15.5): key = seed; counter words 2 and 3 = stream ``3 * position +
purpose``; counter word 0 = block of four words. Counter word 1, zero in that layout, holds the number of the
sample, so the published answers are those of the first of ``n`` samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

SAMPLE = 0
"""Purpose: choosing the token at a position. The only one the engine draws for."""

NUM_PURPOSES = 3
"""Streams of one position; the other two belong to rejection sampling, which this engine does not use."""

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: UInt32, key: UInt32) -> UInt32:
    """The bijection itself (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

    Args:
        counter: uint32 [..., 4].
        key: uint32 [..., 2], broadcast against ``counter``.

    Returns:
        uint32 [..., 4].
    """
    # Words travel in uint64: a product of two fits, and numpy then never warns about a wrapped scalar.
    x, y, z, w = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (key[..., i].astype(np.uint64) for i in range(2))
    for _ in range(_ROUNDS):
        p, q = x * _MULTIPLIERS[0], z * _MULTIPLIERS[1]
        x, y, z, w = (q >> _HALF) ^ y ^ k0, q & _LOW, (p >> _HALF) ^ w ^ k1, p & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return np.stack([x, y, z, w], axis=-1).astype(np.uint32)


def random_words(
    seeds: UInt64, positions: Int64, purpose: int, sample_indices: Int64, num_words: int
) -> UInt32:
    """The first words of one stream per row.

    Args:
        seeds: uint64 [R].
        positions: int64 [R], absolute index of the token the words are for (prompt included), at least 0.
        purpose: ``SAMPLE``, or another number below ``NUM_PURPOSES``.
        sample_indices: int64 [R], which of a request's ``n`` samples, 0 .. 2**32 - 1.
        num_words: words per row.

    Returns:
        uint32 [R, num_words]; row i depends on the i-th seed, position and sample index alone.

    Raises:
        ValueError: an unknown purpose, or a position or sample index out of range.
    """
    if not 0 <= purpose < NUM_PURPOSES:
        raise ValueError(f"purpose {purpose} is outside 0..{NUM_PURPOSES - 1}")
    if (positions < 0).any() or (sample_indices < 0).any() or (sample_indices >= 1 << 32).any():
        raise ValueError("positions must be at least 0 and sample indices inside 0..2**32 - 1")
    stream = positions.astype(np.uint64) * np.uint64(NUM_PURPOSES) + np.uint64(purpose)
    num_blocks = -(-num_words // 4)
    counter = np.empty((len(seeds), num_blocks, 4), np.uint32)
    counter[..., 0] = np.arange(num_blocks, dtype=np.uint32)
    counter[..., 1] = sample_indices.astype(np.uint32)[:, None]
    counter[..., 2] = (stream & _LOW).astype(np.uint32)[:, None]
    counter[..., 3] = (stream >> _HALF).astype(np.uint32)[:, None]
    key = np.stack([seeds & _LOW, seeds >> _HALF], axis=-1).astype(np.uint32)
    return philox(counter, key[:, None]).reshape(len(seeds), 4 * num_blocks)[:, :num_words]


def host_words(
    seeds: torch.Tensor, positions: torch.Tensor, sample_indices: torch.Tensor, num_words: int
) -> torch.Tensor:
    """``Ops.random_words`` on the host."""
    columns = seeds.numpy().view(np.uint64), positions.numpy(), sample_indices.numpy()
    drawn = random_words(columns[0], columns[1], SAMPLE, columns[2], num_words)
    return torch.from_numpy(drawn.astype(np.int64))
