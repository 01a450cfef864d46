from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.eval.stats import clustered_mean, exact_sum


def test_a_sum_of_300000_log_probabilities_is_exact() -> None:
    """A float32 running sum is nats off, and the last bits of a float64 one depend on the order."""
    values = np.random.default_rng(7).normal(-3.0, 2.0, 300_000).astype(np.float32)
    exact = exact_sum(values)
    assert exact == math.fsum(float(value) for value in values)
    assert exact == exact_sum(np.random.default_rng(8).permutation(values))
    running = np.float32(0.0)
    for block in values.reshape(-1, 100):  # what accumulating in float32 gives
        for value in block:
            running = np.float32(running + value)
    assert abs(float(running) - exact) > 0.1


def test_the_clustered_error_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(3)
    documents = [rng.normal(2.0 + rng.normal(0, 0.3), 1.0, size) for size in (10, 25, 40, 7)]
    num_tokens = sum(map(len, documents))
    mean = sum(float(d.sum()) for d in documents) / num_tokens
    squares = sum(float((d - mean).sum()) ** 2 for d in documents)
    found = clustered_mean([exact_sum(d) for d in documents], [len(d) for d in documents])
    assert found is not None
    assert found.mean == pytest.approx(mean, rel=1e-14)
    assert found.standard_error == pytest.approx(math.sqrt(4 / 3 * squares) / num_tokens, rel=1e-9)
    assert found.interval() == pytest.approx(
        (mean - 1.959963984540054 * found.standard_error, mean + 1.959963984540054 * found.standard_error)
    )


def test_the_clustered_error_covers_what_independent_tokens_would_miss() -> None:
    """Documents whose means differ by 0.3: evaluation.md 1.1 finds token-wise errors 9 times too small."""
    rng = np.random.default_rng(11)
    documents = [rng.normal(3.0 + rng.normal(0, 0.3), 1.0, 1000) for _ in range(60)]
    found = clustered_mean([exact_sum(d) for d in documents], [1000] * 60)
    token_wise = float(np.concatenate(documents).std()) / math.sqrt(60_000)
    assert found is not None
    assert found.standard_error is not None
    assert 0.025 < found.standard_error < 0.055
    assert found.standard_error > 6 * token_wise


def test_one_document_has_no_error_and_no_token_has_no_mean() -> None:
    single = clustered_mean([3.0], [2])
    assert single is not None
    assert (single.mean, single.standard_error, single.interval(), single.z_score) == (1.5, None, None, None)
    assert clustered_mean([], []) is None
    assert clustered_mean([0.0], [0]) is None


def test_documents_without_tokens_do_not_count_as_draws() -> None:
    assert clustered_mean([3.0, 0.0, 5.0], [2, 0, 3]) == clustered_mean([3.0, 5.0], [2, 3])


def test_the_z_score_of_an_error_of_zero_is_infinite_or_zero() -> None:
    same = clustered_mean([2.0, 4.0], [1, 2])
    equal = clustered_mean([0.0, 0.0], [1, 2])
    assert same is not None
    assert same.z_score == math.inf
    assert equal is not None
    assert equal.z_score == 0.0


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 50)), min_size=2, max_size=12), st.randoms())
def test_the_order_of_documents_moves_no_bit(pairs: list[tuple[float, int]], random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert clustered_mean(*map(list, zip(*pairs, strict=True))) == clustered_mean(
        *map(list, zip(*shuffled, strict=True))
    )
