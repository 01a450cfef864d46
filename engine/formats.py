"""Block formats of caches and activations, byte exact: MXFP8, MXFP4, FP4 with e4m3 scales.

Formulas: model.md section 8. Groups lie along the last axis. ``quantize_*`` returns one code per byte and one
scale byte per group; ``pack_*`` returns records as a cache stores them, a row's codes and then its scales.
Inputs are float32, bfloat16 or float16 (the latter two are widened exactly first) and must be finite: the
formats have no codes for NaN and infinity, so the quantisers raise ``NonFiniteError``. A finite value that
rounds past the float32 range decodes to infinity.

Legend: C channels of a row, any leading axes (...).
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.engine.codes import (
    ceil_pow2_exponent,
    decode_e2m1,
    decode_e4m3,
    decode_e8m0,
    encode_e2m1,
    encode_e4m3,
    group_amax,
    inverse_pow2,
    pack_nibbles,
    split_groups,
    unpack_nibbles,
)

MX_GROUP = 32
"""Channels that share one scale in MXFP8 and MXFP4."""
FP4_GROUP = 16
"""Channels that share one scale in FP4 with e4m3 scales."""

_MXFP8_FLOOR = 1e-4
_MXFP4_FLOOR = 6 * 2.0**-126
_FP4_FLOOR = 6 * 2.0**-9
_E4M3_MAX = 448.0
_E2M1_MAX = 6.0


def quantize_mxfp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP8 (model.md section 8.2): e4m3 codes [..., C] and e8m0 scales [..., C/32], both uint8.

    Raises:
        NonFiniteError: ``x`` holds NaN or infinity.
        ValueError, TypeError: C is not a multiple of 32; the dtype is not supported.
    """
    groups, amax = group_amax(x, MX_GROUP)
    # Product and quotient give the same byte for every float32 amax; the product is the documented form.
    exponent = ceil_pow2_exponent(amax.clamp(min=_MXFP8_FLOOR) * _fp32(1 / _E4M3_MAX))
    codes = encode_e4m3(groups * inverse_pow2(exponent).unsqueeze(-1))
    return codes.flatten(-2), exponent


def dequantize_mxfp8(codes: Tensor, scales: Tensor) -> Tensor:
    """Decode MXFP8 codes uint8 [..., C] and scales uint8 [..., C/32] to float32 [..., C]."""
    groups = split_groups(decode_e4m3(codes), MX_GROUP)
    return (groups * decode_e8m0(scales).unsqueeze(-1)).flatten(-2)


def pack_mxfp8(x: Tensor) -> Tensor:
    """MXFP8 records uint8 [..., C + C/32]: codes in channel order, then scales (528 bytes at C = 512)."""
    return torch.cat(quantize_mxfp8(x), dim=-1)


def unpack_mxfp8(records: Tensor, width: int) -> Tensor:
    """Decode MXFP8 records uint8 [..., width + width/32] to float32 [..., width]."""
    codes, scales = _split(records, width, width // MX_GROUP)
    return dequantize_mxfp8(codes, scales)


def quantize_mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP4 (model.md section 8.3): e2m1 codes [..., C], one per byte, e8m0 scales [..., C/32]; both uint8.

    Raises:
        NonFiniteError: ``x`` holds NaN or infinity.
        ValueError, TypeError: C is not a multiple of 32; the dtype is not supported.
    """
    groups, amax = group_amax(x, MX_GROUP)
    exponent = ceil_pow2_exponent(amax.clamp(min=_MXFP4_FLOOR) * _fp32(1 / _E2M1_MAX))
    codes = encode_e2m1(groups * inverse_pow2(exponent).unsqueeze(-1))
    return codes.flatten(-2), exponent


def dequantize_mxfp4(codes: Tensor, scales: Tensor) -> Tensor:
    """Decode MXFP4 codes uint8 [..., C], one per byte, and scales uint8 [..., C/32] to float32 [..., C]."""
    groups = split_groups(decode_e2m1(codes), MX_GROUP)
    return (groups * decode_e8m0(scales).unsqueeze(-1)).flatten(-2)


def pack_mxfp4(x: Tensor) -> Tensor:
    """MXFP4 records uint8 [..., C/2 + C/32]: low nibble = even channel, then scales (68 bytes at C = 128)."""
    codes, scales = quantize_mxfp4(x)
    return torch.cat((pack_nibbles(codes), scales), dim=-1)


def unpack_mxfp4(records: Tensor, width: int) -> Tensor:
    """Decode MXFP4 records uint8 [..., width/2 + width/32] to float32 [..., width]."""
    packed, scales = _split(records, width // 2, width // MX_GROUP)
    return dequantize_mxfp4(unpack_nibbles(packed), scales)


def quantize_fp4_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """FP4 with e4m3 scales (model.md section 8.4): e2m1 codes [..., C], e4m3 scales [..., C/16]; both uint8.

    The scale is a rounded ``amax / 6`` and the channels are divided by it, both true divisions. Where the
    scale rounds down, the largest channels saturate.

    Raises:
        NonFiniteError: ``x`` holds NaN or infinity.
        ValueError, TypeError: C is not a multiple of 16; the dtype is not supported.
    """
    groups, amax = group_amax(x, FP4_GROUP)
    scales = encode_e4m3(amax.clamp(min=_FP4_FLOOR) / _E2M1_MAX)
    codes = encode_e2m1(groups / decode_e4m3(scales).unsqueeze(-1))
    return codes.flatten(-2), scales


def dequantize_fp4_e4m3(codes: Tensor, scales: Tensor) -> Tensor:
    """Decode e2m1 codes uint8 [..., C], one per byte, and e4m3 scales [..., C/16] to float32 [..., C]."""
    groups = split_groups(decode_e2m1(codes), FP4_GROUP)
    return (groups * decode_e4m3(scales).unsqueeze(-1)).flatten(-2)


def pack_fp4_e4m3(x: Tensor) -> Tensor:
    """FP4 records uint8 [..., C/2 + C/16]: low nibble = even channel, then scales (288 bytes at C = 512)."""
    codes, scales = quantize_fp4_e4m3(x)
    return torch.cat((pack_nibbles(codes), scales), dim=-1)


def unpack_fp4_e4m3(records: Tensor, width: int) -> Tensor:
    """Decode FP4 records uint8 [..., width/2 + width/16] to float32 [..., width]."""
    packed, scales = _split(records, width // 2, width // FP4_GROUP)
    return dequantize_fp4_e4m3(unpack_nibbles(packed), scales)


def _fp32(value: float) -> float:
    """Round a Python number to the nearest float32, which is what the formulas mean by ``fp32(...)``."""
    return float(torch.tensor(value, dtype=torch.float32))


def _split(records: Tensor, code_bytes: int, scale_bytes: int) -> tuple[Tensor, Tensor]:
    if records.shape[-1] != code_bytes + scale_bytes:
        raise ValueError(f"records are {records.shape[-1]} bytes wide, expected {code_bytes} + {scale_bytes}")
    return records[..., :code_bytes], records[..., code_bytes:]
