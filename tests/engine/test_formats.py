"""Block formats: published bytes, golden arrays, record layout, and an exact rational reference."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.formats import (
    dequantize_fp4_e4m3,
    dequantize_mxfp4,
    dequantize_mxfp8,
    pack_fp4_e4m3,
    pack_mxfp4,
    pack_mxfp8,
    quantize_fp4_e4m3,
    quantize_mxfp4,
    quantize_mxfp8,
    unpack_fp4_e4m3,
    unpack_mxfp4,
    unpack_mxfp8,
)

Pack = Callable[[Tensor], Tensor]
Unpack = Callable[[Tensor, int], Tensor]
FORMATS: dict[str, tuple[Pack, Unpack]] = {
    "fp8_block32": (pack_mxfp8, unpack_mxfp8),
    "mxfp4_block32": (pack_mxfp4, unpack_mxfp4),
    "nvfp4_block16": (pack_fp4_e4m3, unpack_fp4_e4m3),
}
E2M1 = [Fraction(value) / 2 for value in (0, 1, 2, 3, 4, 6, 8, 12)]
E4M3 = [
    Fraction(m, 2**9) if e == 0 else Fraction(8 + m) * Fraction(2) ** (e - 10)
    for e in range(16)
    for m in range(8)
][:-1]


def nearest(value: Fraction, grid: list[Fraction]) -> int:
    """Index of the entry of an ascending grid nearest to value >= 0, ties to the even index, saturating."""
    above = bisect_left(grid, value)
    around = range(max(above - 1, 0), min(above + 1, len(grid)))
    return min(around, key=lambda i: (abs(grid[i] - value), i % 2))


def rounded(value: Fraction) -> Fraction:
    """Value >= 0 rounded to float32, ties to even."""
    if value == 0:
        return value
    exponent = max(math.floor(math.log2(value)), -126)
    while Fraction(2) ** exponent > value and exponent > -126:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= value:
        exponent += 1
    step = Fraction(2) ** (exponent - 23)
    return round(value / step) * step  # Python rounds a tie to even


def exact_mx(x: list[float], grid: list[Fraction], floor: Fraction) -> tuple[list[int], int]:
    """Codes and scale byte of one MX group by rational arithmetic; the sign bit sits above the grid index."""
    amax = max(*(abs(Fraction(v)) for v in x), floor)
    target = rounded(amax * rounded(1 / grid[-1]))
    exponent = 1
    while Fraction(2) ** (exponent - 127) < target:
        exponent += 1
    scale = Fraction(2) ** (exponent - 127)
    return signed_codes(x, [abs(Fraction(v)) / scale for v in x], grid), exponent


def exact_fp4(x: list[float]) -> tuple[list[int], int]:
    """Codes and e4m3 scale byte of one group of 16 by rational arithmetic."""
    amax = max(*(abs(Fraction(v)) for v in x), 6 * Fraction(1, 2**9))
    byte = nearest(min(rounded(amax / 6), Fraction(448)), E4M3)
    return signed_codes(x, [rounded(abs(Fraction(v)) / E4M3[byte]) for v in x], E2M1), byte


def signed_codes(x: list[float], magnitudes: list[Fraction], grid: list[Fraction]) -> list[int]:
    sign_bit = 8 if len(grid) == 8 else 128
    return [
        nearest(magnitude, grid) | (sign_bit if math.copysign(1, v) < 0 else 0)
        for v, magnitude in zip(x, magnitudes, strict=True)
    ]


ANY = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=True)
BOUNDARY = st.builds(
    lambda m, e, ulps, sign: (
        sign * float(np.float32(math.ldexp(m, e)) + ulps * np.spacing(np.float32(m * 2.0**e)))
    ),
    st.sampled_from([0.25, 0.75, 1.0, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 9.5, 17.0, 448.0, 449.0, 464.0]),
    st.integers(-20, 20),
    st.sampled_from([-1, 0, 0, 1]),
    st.sampled_from([-1.0, 1.0]),
)
CHANNEL = st.one_of(BOUNDARY, BOUNDARY, ANY, st.floats(-8, 8, width=32), st.sampled_from([0.0, -0.0]))


@given(st.lists(CHANNEL, min_size=32, max_size=32))
@settings(max_examples=100)
def test_mx_formats_agree_with_rational_arithmetic(x: list[float]) -> None:
    codes, scales = quantize_mxfp8(torch.tensor(x))
    assert (codes.tolist(), scales.item()) == exact_mx(x, E4M3, Fraction(np.float32(1e-4).item()))
    codes, scales = quantize_mxfp4(torch.tensor(x))
    assert (codes.tolist(), scales.item()) == exact_mx(x, E2M1, 6 * Fraction(2) ** -126)


@given(st.lists(CHANNEL, min_size=16, max_size=16))
@settings(max_examples=150)
def test_fp4_agrees_with_rational_arithmetic(x: list[float]) -> None:
    codes, scales = quantize_fp4_e4m3(torch.tensor(x))
    assert (codes.tolist(), scales.item()) == exact_fp4(x)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("suffix", ["", "_bf16"])
def test_round_trip_equals_the_golden_array(golden_dir: Path, name: str, suffix: str) -> None:
    golden = load_file(golden_dir / "A_units.safetensors")
    pack, unpack = FORMATS[name]
    source, want = golden[f"quant.input{suffix}"], golden[f"quant.{name}{suffix}"]
    got = unpack(pack(source), source.shape[-1])
    assert torch.equal(got.view(torch.int32), want.to(torch.float32).view(torch.int32))


@pytest.mark.parametrize(
    ("name", "width", "size"),
    [(n, *s) for n, s in zip(FORMATS, [(512, 528), (128, 68), (512, 288)], strict=True)],
)
def test_record_sizes_are_the_published_ones(name: str, width: int, size: int) -> None:
    pack, unpack = FORMATS[name]
    records = pack(torch.randn(2, 3, width))
    assert records.shape == (2, 3, size)
    assert records.dtype is torch.uint8
    assert unpack(records, width).shape == (2, 3, width)


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_do_not_depend_on_neighbouring_rows_or_strides(name: str) -> None:
    pack, unpack = FORMATS[name]
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(1))
    records = pack(x)
    assert torch.equal(records[3], pack(x[3]))
    assert torch.equal(records, pack(x.T.contiguous().T))
    assert torch.equal(unpack(records, 64)[3], unpack(records[3], 64))


@pytest.mark.parametrize("name", FORMATS)
def test_empty_batch_is_an_empty_batch(name: str) -> None:
    pack, unpack = FORMATS[name]
    assert unpack(pack(torch.zeros(0, 64)), 64).shape == (0, 64)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_channel_is_refused(name: str, value: float) -> None:
    with pytest.raises(NonFiniteError):
        FORMATS[name][0](torch.tensor([value] + [1.0] * 31))


@pytest.mark.parametrize("name", FORMATS)
def test_record_of_another_width_is_refused(name: str) -> None:
    pack, unpack = FORMATS[name]
    with pytest.raises(ValueError, match="bytes wide"):
        unpack(pack(torch.zeros(64)), 96)


def test_published_mxfp8_scale_bytes() -> None:
    amax = [0, 0.4375, 0.44, 1.0, 2.0, 3.5, 3.6, 7, 448, 449]
    x = torch.zeros(len(amax), 32)
    x[:, 5] = -torch.tensor(amax)
    assert quantize_mxfp8(x)[1].flatten().tolist() == [105, 117, 118, 119, 120, 120, 121, 121, 127, 128]


def test_published_mxfp4_scale_bytes() -> None:
    amax = [0, 1, 2.9, 3, 6, 6.1, 12]
    x = torch.zeros(len(amax), 32)
    x[:, 31] = torch.tensor(amax)
    assert quantize_mxfp4(x)[1].flatten().tolist() == [1, 125, 126, 126, 127, 128, 128]


def test_published_fp4_example() -> None:
    text = "0.02 -0.05 0.11 0.17 -0.23 0.31 0.4 -0.52 0.66 -0.71 0.05 0 0.9 -1.0 0.33 0.25"
    x = torch.tensor([float(word) for word in text.split()])
    codes, scales = quantize_fp4_e4m3(x)
    assert scales.tolist() == [0x23]
    assert codes.tolist() == [0, 9, 1, 2, 11, 4, 4, 13, 6, 14, 1, 0, 7, 15, 4, 3]
    assert bytes(pack_fp4_e4m3(x).tolist()).hex(" ") == "90 21 4b d4 e6 01 f7 34 23"
    values = [0, -0.0859375, 0.0859375, 0.171875, -0.2578125, 0.34375, 0.34375, -0.515625]
    values += [0.6875, -0.6875, 0.0859375, 0, 1.03125, -1.03125, 0.34375, 0.2578125]
    assert unpack_fp4_e4m3(pack_fp4_e4m3(x), 16).tolist() == values


def test_fp4_saturates_where_its_scale_rounded_down() -> None:
    x = torch.full((16,), 6.3)  # amax / 6 = 1.05 rounds down to 1, and 6.3 is past 6 * 1
    assert set(dequantize_fp4_e4m3(*quantize_fp4_e4m3(x)).tolist()) == {6.0}
    assert set(dequantize_fp4_e4m3(*quantize_fp4_e4m3(torch.full((16,), 1e30))).tolist()) == {2688.0}


def test_fp4_scale_is_a_quotient_and_not_a_product() -> None:
    """Here amax / 6 lies just below the midpoint of two scales; amax * fp32(1/6) rounds onto it."""
    amax = torch.tensor([float.fromhex("0x1.c7fffep-4"), float.fromhex("0x1.c7fffep+0")])
    scales = quantize_fp4_e4m3(amax.unsqueeze(-1).expand(2, 16))[1]
    assert scales.flatten().tolist() == [9, 41]


def test_fp4_of_zeros_has_the_floor_scale() -> None:
    codes, scales = quantize_fp4_e4m3(torch.zeros(16))
    assert (set(codes.tolist()), scales.tolist()) == ({0}, [1])


def test_subnormal_inputs_keep_their_codes() -> None:
    tiny = torch.full((32,), 3 * 2.0**-127)  # subnormal; the smallest scale is 2^-126
    codes, scales = quantize_mxfp4(tiny)
    assert (set(codes.tolist()), scales.tolist()) == ({3}, [1])
    assert dequantize_mxfp4(codes, scales).tolist() == tiny.tolist()


def test_values_are_exact_in_bfloat16() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(3)) * 10
    for pack, unpack in FORMATS.values():
        values = unpack(pack(x), 64)
        assert torch.equal(values.to(torch.bfloat16).to(torch.float32), values)


def test_finite_value_past_the_float32_range_becomes_infinite() -> None:
    largest = torch.full((32,), torch.finfo(torch.float32).max)
    assert set(dequantize_mxfp8(*quantize_mxfp8(largest)).tolist()) == {math.inf}
    assert set(dequantize_mxfp4(*quantize_mxfp4(largest)).tolist()) == {math.inf}
