"""Formats of stored weights, byte exact (model.md section 8.7): FP8 in 32x32 blocks, FP4 rows, FP8 rows.

Scales are e8m0 bytes (uint8). Decoded values are float32; normal ones are exact in bfloat16 as well. The
quantisers regenerate weights for tests and small checkpoints: the scale is the smallest power of two at or
above ``amax / 448`` (FP8) or ``amax / 6`` (FP4), and 2^-126 where a block is all zero.

Legend: O output rows, I input columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.engine.codes import (
    ceil_pow2_exponent,
    decode_e4m3,
    decode_e8m0,
    decode_packed_e2m1,
    encode_e2m1,
    encode_e4m3,
    group_amax,
    inverse_pow2,
    pack_nibbles,
    split_groups,
)

BLOCK = 32
"""Side of an FP8 block, and columns that share one scale in the row formats."""


def dequantize_fp8_block(weight: Tensor, scale: Tensor) -> Tensor:
    """Decode e4m3 bytes [O, I] with one scale per 32x32 block [ceil(O/32), ceil(I/32)] to float32 [O, I]."""
    rows, columns = weight.shape
    if scale.shape != (_blocks(rows), _blocks(columns)):
        raise ValueError(
            f"scale {list(scale.shape)} does not fit weight {list(weight.shape)} in 32x32 blocks"
        )
    values = decode_e4m3(weight.view(torch.uint8))
    factors = decode_e8m0(scale)
    if columns % BLOCK == 0:
        # Broadcasting over the columns of a block keeps the temporary at the size of the result.
        factors = factors.repeat_interleave(BLOCK, dim=0)[:rows]
        return split_groups(values, BLOCK).mul_(factors.unsqueeze(-1)).flatten(1)
    return values.mul_(factors.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns])


def quantize_fp8_block(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [O, I] to e4m3 bytes uint8 [O, I] and scales uint8 [ceil(O/32), ceil(I/32)].

    Raises:
        NonFiniteError: ``weight`` holds NaN or infinity.
    """
    rows, columns = weight.shape
    padded = weight.new_zeros(_blocks(rows) * BLOCK, _blocks(columns) * BLOCK)
    padded[:rows, :columns] = weight
    tiles = padded.view(_blocks(rows), BLOCK, _blocks(columns), BLOCK).transpose(1, 2).flatten(2)
    groups, amax = group_amax(tiles, BLOCK * BLOCK)
    exponent = ceil_pow2_exponent(amax / 448)
    codes = encode_e4m3(groups * inverse_pow2(exponent).unsqueeze(-1))
    codes = codes.view(_blocks(rows), _blocks(columns), BLOCK, BLOCK).transpose(1, 2).reshape(padded.shape)
    return codes[:rows, :columns].contiguous(), exponent.squeeze(-1)


def dequantize_fp4_rows(packed: Tensor, scale: Tensor) -> Tensor:
    """Decode packed e2m1 int8 or uint8 [O, I/2] with scales [O, I/32] to float32 [O, I]."""
    values = decode_packed_e2m1(packed.view(torch.uint8))
    return _scale_rows(values, scale)


def quantize_fp4_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [O, I] to packed e2m1 int8 [O, I/2] and scales uint8 [O, I/32].

    Raises:
        NonFiniteError: ``weight`` holds NaN or infinity.
    """
    groups, amax = group_amax(weight, BLOCK)
    exponent = ceil_pow2_exponent(amax / 6)
    codes = encode_e2m1(groups * inverse_pow2(exponent).unsqueeze(-1)).flatten(-2)
    return pack_nibbles(codes).view(torch.int8), exponent


def dequantize_fp8_rows(weight: Tensor, scale: Tensor) -> Tensor:
    """Decode e4m3 bytes [..., I] with scales [..., I/32] (Engram rows) to float32 [..., I]."""
    return _scale_rows(decode_e4m3(weight.view(torch.uint8)), scale)


def quantize_fp8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [..., I] to e4m3 bytes uint8 [..., I] and scales uint8 [..., I/32].

    Raises:
        NonFiniteError: ``weight`` holds NaN or infinity.
    """
    groups, amax = group_amax(weight, BLOCK)
    exponent = ceil_pow2_exponent(amax / 448)
    return encode_e4m3(groups * inverse_pow2(exponent).unsqueeze(-1)).flatten(-2), exponent


def _scale_rows(values: Tensor, scale: Tensor) -> Tensor:
    if values.shape[-1] != scale.shape[-1] * BLOCK:
        raise ValueError(
            f"scale {list(scale.shape)} does not fit values {list(values.shape)} in groups of 32"
        )
    return split_groups(values, BLOCK).mul_(decode_e8m0(scale).unsqueeze(-1)).flatten(-2)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)
