"""Which Engram table rows a position looks up: hashes of the last n compressed ids.

model.md sections 6.2, 6.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.engine.engram_primes import engram_primes
from deepinfer.engine.model_config import ModelConfig

Int64 = npt.NDArray[np.int64]


def hash_multipliers(layer: int, compressed_vocab_size: int, max_ngram_size: int) -> Int64:
    """Odd multipliers m_0 .. m_{n-1} of an Engram layer; ``id * m`` stays below 2**63."""
    bound = ((2**63 - 1) // compressed_vocab_size) // 2
    generator = np.random.default_rng(10007 * layer)
    return generator.integers(0, bound, size=max_ngram_size, dtype=np.int64) * 2 + 1


class EngramHash:
    """Row numbers of every Engram layer from compressed ids."""

    def __init__(self, config: ModelConfig, vocabulary_map: Int64) -> None:
        """Derive multipliers, primes and offsets; ``vocabulary_map`` is int64 [vocab_size]."""
        self.vocabulary_map = vocabulary_map
        self.pad = int(vocabulary_map[config.engram_pad_token_id])
        self.max_ngram_size = config.engram_max_ngram_size
        self.multipliers = [
            hash_multipliers(layer, config.engram_compressed_vocab_size, config.engram_max_ngram_size)
            for layer in config.engram_layer_ids
        ]
        primes = engram_primes(
            num_layers=len(config.engram_layer_ids),
            vocab_size=config.engram_vocab_size,
            max_ngram_size=config.engram_max_ngram_size,
            num_heads=config.engram_n_heads,
        )
        self.primes = [np.array(layer_primes, np.int64) for layer_primes in primes]
        self.offsets = [np.concatenate([[0], np.cumsum(p)[:-1]]).astype(np.int64) for p in self.primes]

    def compressed_history(self, recent_ids: Int64) -> Int64:
        """Compressed ids a_0 .. a_{n-1} of each row; everything before a sequence start is the pad.

        Args:
            recent_ids: raw ids int64 [T, n], own token first, -1 before the start of the sequence.
        """
        inside = np.logical_and.accumulate(recent_ids >= 0, axis=1)
        return np.where(inside, self.vocabulary_map[np.maximum(recent_ids, 0)], self.pad)

    def rows(self, slot: int, history: Int64) -> Int64:
        """Table rows int64 [T, (n - 1) * heads] of Engram number ``slot``, n = 2 first, heads inside."""
        multipliers, primes, offsets = self.multipliers[slot], self.primes[slot], self.offsets[slot]
        num_heads = len(primes) // (self.max_ngram_size - 1)
        accumulated = history[:, 0] * multipliers[0]
        columns = []
        for n in range(1, self.max_ngram_size):
            accumulated = accumulated ^ (history[:, n] * multipliers[n])
            part = slice((n - 1) * num_heads, n * num_heads)
            columns.append(accumulated[:, None] % primes[None, part] + offsets[None, part])
        return np.concatenate(columns, axis=1)
