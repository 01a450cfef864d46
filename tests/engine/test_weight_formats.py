"""Stored weights: layout of scales, ragged edges, and agreement with one-block-at-a-time arithmetic."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.weight_formats import (
    dequantize_fp4_rows,
    dequantize_fp8_block,
    dequantize_fp8_rows,
    quantize_fp4_rows,
    quantize_fp8_block,
    quantize_fp8_rows,
)

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def random_bytes(seed: int, *shape: int, below: int = 256) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, below, shape, dtype=torch.uint8, generator=generator)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def test_blocks_scale_every_element_by_its_own_tile() -> None:
    codes, scale = random_bytes(0, 40, 70, below=127), random_bytes(1, 2, 3, below=255)
    got = dequantize_fp8_block(codes.view(torch.float8_e4m3fn), scale)
    values = codes.view(torch.float8_e4m3fn).to(torch.float64)
    for row in range(40):
        for column in range(70):
            want = values[row, column].item() * math.ldexp(1.0, int(scale[row // 32, column // 32]) - 127)
            assert got[row, column].item() == torch.tensor(want).to(torch.float32).item()


def test_whole_and_ragged_blocks_decode_alike() -> None:
    codes, scale = random_bytes(2, 64, 96, below=127), random_bytes(3, 2, 3, below=255)
    whole = dequantize_fp8_block(codes, scale)
    assert same_bits(dequantize_fp8_block(codes[:50, :90], scale), whole[:50, :90])


def test_packed_rows_decode_low_nibble_first() -> None:
    packed = random_bytes(4, 5, 32)
    scale = random_bytes(5, 5, 2, below=250)
    got = dequantize_fp4_rows(packed.view(torch.int8), scale)
    for row in range(5):
        for column in range(64):
            byte = int(packed[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            want = E2M1[code] * math.ldexp(1.0, int(scale[row, column // 32]) - 127)
            assert got[row, column].item() == want


def test_rows_decode_with_any_leading_shape() -> None:
    codes, scale = random_bytes(6, 3, 4, 64, below=127), random_bytes(7, 3, 4, 2, below=240)
    flat = dequantize_fp8_rows(codes.flatten(0, 1), scale.flatten(0, 1))
    assert same_bits(dequantize_fp8_rows(codes, scale).flatten(0, 1), flat)


@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**31), st.sampled_from([1e-30, 1e-3, 1.0, 1e20])
)
@settings(max_examples=30)
def test_block_quantiser_treats_each_tile_alone(rows: int, columns: int, seed: int, size: float) -> None:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size
    codes, scale = quantize_fp8_block(weight)
    assert codes.shape == weight.shape
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            where = slice(32 * i, 32 * i + 32), slice(32 * j, 32 * j + 32)
            tile = weight[where]
            exponent = max(math.ceil(math.log2(tile.abs().max().item() / 448)), -126)
            want = (tile.double() * 2.0**-exponent).float().to(torch.float8_e4m3fn).view(torch.uint8)
            assert int(scale[i, j]) == exponent + 127
            assert torch.equal(codes[where], want)


def test_exact_values_survive_their_round_trip() -> None:
    """A block that reaches the top code keeps its scale, so codes and scales come back byte for byte."""
    codes, scale = random_bytes(8, 64, 64, below=127), random_bytes(9, 2, 2, below=200) + 20
    codes[::32, ::32] = 0x7E
    weight = dequantize_fp8_block(codes, scale)
    for got, want in zip(quantize_fp8_block(weight), (codes, scale), strict=True):
        assert torch.equal(got, want)
    packed, row_scale = random_bytes(10, 8, 32), random_bytes(11, 8, 2, below=200) + 20
    packed[:, ::16] = 0x77
    for got, want in zip(
        quantize_fp4_rows(dequantize_fp4_rows(packed, row_scale)),
        (packed.view(torch.int8), row_scale),
        strict=True,
    ):
        assert torch.equal(got, want)
    rows, row_scale = random_bytes(12, 8, 64, below=127), random_bytes(13, 8, 2, below=200) + 20
    rows[:, ::32] = 0xFE
    for got, want in zip(
        quantize_fp8_rows(dequantize_fp8_rows(rows, row_scale)), (rows, row_scale), strict=True
    ):
        assert torch.equal(got, want)


def test_zero_block_has_the_smallest_scale() -> None:
    for quantise in (quantize_fp8_block, quantize_fp4_rows, quantize_fp8_rows):
        codes, scale = quantise(torch.zeros(32, 32))
        assert set(codes.flatten().tolist()) == {0}
        assert set(scale.flatten().tolist()) == {1}


def test_nan_scale_and_nan_code_decode_to_nan() -> None:
    scale = torch.tensor([[255]], dtype=torch.uint8)
    assert bool(dequantize_fp8_block(torch.ones(32, 32).to(torch.float8_e4m3fn), scale).isnan().all())
    codes = torch.full((1, 32), 0x7F, dtype=torch.uint8)
    assert bool(dequantize_fp8_rows(codes, torch.tensor([[127]], dtype=torch.uint8)).isnan().all())


def test_scale_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        dequantize_fp8_block(torch.zeros(64, 64, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="does not fit"):
        dequantize_fp4_rows(torch.zeros(4, 32, dtype=torch.uint8), torch.zeros(4, 1, dtype=torch.uint8))


def test_non_finite_weight_is_refused() -> None:
    weight = torch.zeros(32, 32)
    weight[3, 4] = math.nan
    for quantise in (quantize_fp8_block, quantize_fp4_rows, quantize_fp8_rows):
        with pytest.raises(NonFiniteError):
            quantise(weight)
