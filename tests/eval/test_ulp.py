from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.eval.ulp import ulp_distance, ulp_histogram


def distance(left: float, right: float) -> int:
    return int(ulp_distance(np.array([left], np.float32), np.array([right], np.float32))[0])


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (1.0, 1.0, 0),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 1),
        (-1.0, np.nextafter(np.float32(-1), np.float32(-2)), 1),
        (0.0, -0.0, 1),
        (0.0, 1e-45, 1),
        (-1e-45, 1e-45, 3),
        (1.0, np.nan, -1),
        (1.0, 2.0, 1 << 23),
    ],
)
def test_distances_are_counted_in_float32_steps(left: float, right: float, expected: int) -> None:
    assert distance(left, right) == expected
    assert distance(right, left) == expected


def test_nans_of_the_same_bits_are_equal_and_of_others_are_not() -> None:
    bits = np.array([0x7FC00000, 0x7FC00000], np.uint32).view(np.float32)
    other = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert ulp_distance(bits, other).tolist() == [0, -1]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_the_distance_is_zero_only_for_equal_bits(left: int, right: int) -> None:
    sides = [np.array([bits], np.uint32).view(np.float32) for bits in (left, right)]
    assert (ulp_distance(*sides)[0] == 0) == (left == right)


def test_the_histogram_counts_every_difference_once() -> None:
    counts = ulp_histogram(np.array([0, 0, 1, 2, 2, 3, 4, 5, 8, 9, 100, -1]))
    assert counts == {"nan": 1, "1": 1, "2": 2, "3-4": 2, "5-8": 2, "9-16": 1, "65-128": 1}
    assert ulp_histogram(np.zeros(5, np.int64)) == {}
