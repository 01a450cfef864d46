"""Scalar codes, exhaustively: all e2m1, e4m3 and e8m0 codes, and every rounding boundary between them."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from deepinfer.engine.codes import (
    ceil_pow2_exponent,
    decode_e2m1,
    decode_e4m3,
    decode_e8m0,
    decode_packed_e2m1,
    encode_e2m1,
    encode_e4m3,
    group_amax,
    inverse_pow2,
    pack_nibbles,
    unpack_nibbles,
)
from deepinfer.engine.errors import NonFiniteError

BYTES = torch.arange(256, dtype=torch.uint8)


def e4m3_value(code: int) -> float:
    """The number behind an e4m3fn byte, from its bit fields."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10))


def bits(x: Tensor) -> list[int]:
    """Float32 bit patterns, so that NaN equals NaN and -0.0 differs from 0.0."""
    return x.contiguous().view(torch.int32).tolist()


def float32(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_all_16_e2m1_codes_decode() -> None:
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    decoded = decode_e2m1(torch.arange(16, dtype=torch.uint8))
    assert bits(decoded) == bits(float32([*magnitudes, *(-m for m in magnitudes)]))


def test_all_16_e2m1_codes_survive_encoding() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(encode_e2m1(decode_e2m1(codes)), codes)


def test_e2m1_ties_go_to_the_even_code() -> None:
    midpoints = float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert encode_e2m1(midpoints).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert encode_e2m1(-midpoints).tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_e2m1_neighbours_of_a_tie_go_to_their_side() -> None:
    midpoints = float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    infinity = torch.full_like(midpoints, math.inf)
    assert encode_e2m1(torch.nextafter(midpoints, -infinity)).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert encode_e2m1(torch.nextafter(midpoints, infinity)).tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_e2m1_saturates_and_keeps_the_sign_of_zero() -> None:
    extremes = float32([6.0, 6.1, 1e30, -6.1, -1e30, 0.0, -0.0, 1e-45, -1e-45])
    assert encode_e2m1(extremes).tolist() == [7, 7, 7, 15, 15, 0, 8, 0, 8]


def test_all_256_e4m3_bytes_decode() -> None:
    expected = [e4m3_value(code) for code in range(256)]
    decoded = decode_e4m3(BYTES).tolist()
    for code, (got, want) in enumerate(zip(decoded, expected, strict=True)):
        assert math.copysign(1, got) == math.copysign(1, want) or math.isnan(want), code
        assert got == want or (math.isnan(got) and math.isnan(want)), code
    assert [code for code in range(256) if math.isnan(decoded[code])] == [0x7F, 0xFF]


def test_every_finite_e4m3_byte_survives_encoding() -> None:
    finite = BYTES[(BYTES & 0x7F) != 0x7F]
    assert torch.equal(encode_e4m3(decode_e4m3(finite)), finite)


def test_every_e4m3_boundary_rounds_to_nearest_even() -> None:
    values = float32([e4m3_value(code) for code in range(0x7F)])
    midpoints = (values[:-1] + values[1:]) / 2  # exact: one bit more than e4m3 has
    lower = torch.arange(0x7E, dtype=torch.uint8)
    infinity = torch.full_like(midpoints, math.inf)
    assert torch.equal(encode_e4m3(midpoints), lower + (lower & 1))
    assert torch.equal(encode_e4m3(torch.nextafter(midpoints, -infinity)), lower)
    assert torch.equal(encode_e4m3(torch.nextafter(midpoints, infinity)), lower + 1)
    assert torch.equal(encode_e4m3(-midpoints), (lower + (lower & 1)) | 0x80)


def test_e4m3_saturates_instead_of_overflowing() -> None:
    extremes = float32([448.0, 449.0, 464.0, 465.0, 1e30, -449.0, -1e30])
    assert encode_e4m3(extremes).tolist() == [0x7E] * 5 + [0xFE] * 2


def test_all_256_e8m0_bytes_decode() -> None:
    decoded = decode_e8m0(BYTES)
    assert [Fraction(value) for value in decoded[:255].tolist()] == [
        Fraction(2) ** (byte - 127) for byte in range(255)
    ]
    assert bool(torch.isnan(decoded[255]))


def test_reciprocal_scale_is_exact() -> None:
    exponents = torch.arange(1, 254, dtype=torch.uint8)
    assert torch.equal(inverse_pow2(exponents) * decode_e8m0(exponents), torch.ones(253))


def test_exponent_is_the_next_power_of_two_at_or_above() -> None:
    powers = decode_e8m0(torch.arange(1, 255, dtype=torch.uint8))
    above = torch.nextafter(powers[:-1], torch.full_like(powers[:-1], math.inf))
    below = torch.nextafter(powers[1:], torch.zeros_like(powers[1:]))
    assert ceil_pow2_exponent(powers).tolist() == list(range(1, 255))
    assert ceil_pow2_exponent(above).tolist() == list(range(2, 255))
    assert ceil_pow2_exponent(below).tolist() == list(range(2, 255))
    assert ceil_pow2_exponent(float32([0.0, 1e-45, 1e-39])).tolist() == [1, 1, 1]


def test_low_nibble_is_the_even_channel() -> None:
    assert pack_nibbles(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]
    assert torch.equal(pack_nibbles(unpack_nibbles(BYTES)), BYTES)


def test_packed_decoding_agrees_with_unpacking_first() -> None:
    assert bits(decode_packed_e2m1(BYTES)) == bits(decode_e2m1(unpack_nibbles(BYTES)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_groups_refuse_what_no_code_stands_for(value: float, dtype: torch.dtype) -> None:
    x = torch.ones(3, 64, dtype=dtype)
    x[1, 40] = value
    with pytest.raises(NonFiniteError, match=r"shape \[3, 64\] that holds NaN or infinity"):
        group_amax(x, 32)


def test_groups_refuse_partial_groups_and_wide_inputs() -> None:
    with pytest.raises(ValueError, match=r"shape \[2, 48\] into groups of 32"):
        group_amax(torch.ones(2, 48), 32)
    with pytest.raises(TypeError, match="float64"):
        group_amax(torch.ones(2, 32, dtype=torch.float64), 32)
