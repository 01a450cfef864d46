from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.verify.compare import bits, compare_arrays, ulp_distance


def float32_of(pattern: int) -> np.float32:
    return np.frombuffer(struct.pack("<I", pattern), dtype=np.float32)[0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "uint16", "bool"])
def test_an_array_equals_its_copy(dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    found = compare_arrays(array, array.copy())
    assert found.equal
    assert (found.num_compared, found.num_differing, found.first) == (24, 0, None)


def test_equal_nan_bytes_are_equal() -> None:
    nan = np.array([np.nan, 1.0], dtype=np.float32)
    assert compare_arrays(nan, nan.copy()).equal


def test_nan_payloads_count() -> None:
    left = np.array([float32_of(0x7FC00000)])
    right = np.array([float32_of(0x7FC00001)])
    found = compare_arrays(left, right)
    assert found.num_differing == 1
    assert found.first is not None
    assert (found.first.left_hex, found.first.right_hex) == ("0x7fc00000", "0x7fc00001")
    assert found.first.ulp is None
    assert np.isnan(found.max_abs_diff)


def test_the_sign_of_zero_counts() -> None:
    found = compare_arrays(np.zeros(3, np.float32), np.array([0.0, -0.0, 0.0], np.float32))
    assert found.num_differing == 1
    assert found.first is not None
    assert found.first.coordinates == (1,)
    assert found.first.ulp == 0
    assert found.max_abs_diff == 0.0


def test_the_first_difference_is_first_in_row_major_order_and_fully_described() -> None:
    left = np.arange(12, dtype=np.float32).reshape(3, 4)
    right = left.copy()
    right[2, 0] += 4
    right[1, 3] = np.nextafter(np.float32(7), np.float32(8))
    found = compare_arrays(left, right)
    assert found.num_differing == 2
    assert found.max_abs_diff == 4.0
    assert found.first is not None
    assert found.first.flat_index == 7
    assert found.first.coordinates == (1, 3)
    assert (found.first.left_hex, found.first.left) == ("0x40e00000", "7.0")
    assert (found.first.right_hex, found.first.right) == ("0x40e00001", "7.0000005")
    assert found.first.ulp == 1


def test_integers_have_no_ulp_but_a_distance() -> None:
    found = compare_arrays(np.array([3, -5], np.int32), np.array([3, 7], np.int32))
    assert found.first is not None
    assert found.first.ulp is None
    assert found.max_abs_diff == 12.0


def test_another_shape_or_dtype_is_a_difference() -> None:
    array = np.zeros((2, 3), np.float32)
    assert compare_arrays(array, array.reshape(3, 2)).mismatch == "shape (2, 3) against (3, 2)"
    assert compare_arrays(array, array.astype(np.float64)).mismatch == "dtype float32 against float64"
    assert not compare_arrays(array, array.reshape(3, 2)).equal


def test_strided_views_scalars_and_empty_arrays_are_compared_by_value() -> None:
    array = np.arange(10, dtype=np.float32)
    assert compare_arrays(array[::2], np.array([0, 2, 4, 6, 8], np.float32)).equal
    assert not compare_arrays(np.array(1.0), np.array(2.0)).equal
    assert compare_arrays(np.zeros((0, 4)), np.zeros((0, 4))).equal


def test_infinities_are_infinitely_far_from_numbers() -> None:
    found = compare_arrays(np.array([np.inf, 1.0]), np.array([1.0, 1.0]))
    assert found.max_abs_diff == np.inf


def test_elements_without_bits_are_refused() -> None:
    with pytest.raises(TypeError, match="dtype object"):
        bits(np.array([object()]))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(0, 40))
def test_ulp_distance_counts_the_steps_of_nextafter(start: float, steps: int) -> None:
    value = np.float32(start)
    for _ in range(steps):
        value = np.nextafter(value, np.float32(np.inf))
    assert ulp_distance(np.array([np.float32(start)]), np.array([value]))[0] == steps


def test_ulp_distance_of_opposite_doubles_saturates() -> None:
    distance = ulp_distance(np.array([-1.7e308]), np.array([1.7e308]))
    assert distance[0] == np.iinfo(np.int64).max


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8))
def test_equal_means_equal_bytes(left: bytes, right: bytes) -> None:
    one, other = np.frombuffer(left, np.float32), np.frombuffer(right, np.float32)
    assert compare_arrays(one, other).equal == (left == right)
