"""The draw alone: integer weights in lanes, published answers, rejected words."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer.kernels.cpu import sampling as cpu_sampling
from deepinfer.kernels.reference import sampling as reference_sampling
from deepinfer.kernels.rng import random_words


def words_for(seed: int, purpose: int, positions: int) -> list[list[int]]:
    index = np.arange(positions, dtype=np.int64)
    drawn = random_words(np.full(positions, seed, np.uint64), index, purpose, np.zeros_like(index), 16)
    found: list[list[int]] = drawn.tolist()
    return found


def draw_both(weights: np.ndarray, words: list[int]) -> int:
    lanes = np.empty(cpu_sampling.num_lanes(len(weights)), np.int64)
    token = cpu_sampling.draw(weights, np.array(words, np.int64), lanes)
    assert reference_sampling.draw(weights.tolist(), words) == token
    return int(token)


@pytest.mark.parametrize(
    ("seed", "purpose", "want"),
    [
        (1234, 0, "1 3 3 0 2 1 1 3 1 3 1 2 2 0 3 2"),
        (1234, 1, "3 2 3 3 2 1 1 3 2 2 3 1 3 3 0 0"),
        (2**63 + 5, 0, "0 3 3 2 1 3 2 1 3 1 1 2 2 3 3 3"),
        (2**63 + 5, 1, "3 2 2 3 2 3 0 1 3 2 1 3 2 2 3 3"),
    ],
)
def test_draws_of_four_tokens_are_the_published_ones(seed: int, purpose: int, want: str) -> None:
    """engine.md Appendix A."""
    weights = (np.array([0.1, 0.2, 0.3, 0.4], np.float32) * np.float32(2**31)).astype(np.int64)
    assert weights.tolist() == [214748368, 429496736, 644245120, 858993472]
    assert [draw_both(weights, words) for words in words_for(seed, purpose, 16)] == [*map(int, want.split())]


def test_draws_of_many_lanes_are_the_published_ones() -> None:
    raw = np.arange(10000) % 7 + 1
    weights = ((raw / raw.sum()).astype(np.float32) * np.float32(2**31)).astype(np.int64)
    tokens = [draw_both(weights, words) for words in words_for(1234, 0, 8)]
    assert tokens == [8700, 4736, 3609, 7068, 3079, 1970, 6376, 1784]


def test_words_past_the_last_multiple_are_rejected() -> None:
    weights = np.array([3, 0, 5], np.int64)  # total 8: the limit is 2**32 - 8, lanes are ids 0 1 2 3
    assert draw_both(weights, [2**32 - 8, 2]) == 0
    assert draw_both(weights, [2**32 - 9, 2]) == 2
    assert draw_both(weights, [2**32 - 1, 2**32 - 8, 3]) == 2
    assert draw_both(weights, [2**32 - 8, 2**32 - 6]) == 0  # all rejected: the last one, modulo the total
    assert [draw_both(weights, [word]) for word in range(8)] == [0] * 3 + [2] * 5
