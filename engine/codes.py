"""The scalar codes under every block format: e4m3, e2m1 and e8m0 bytes (model.md section 8).

All steps are exact or one round-to-nearest-even; exponents are read off bit patterns, never off a logarithm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.engine.errors import NonFiniteError

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the e2m1 codes 0 to 7; code 8 + i is the negative of code i, with a negative zero."""

_E2M1_MIDPOINTS = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)
"""Between neighbouring magnitudes, and whether the upper one has the even code, which takes the tie."""
_E4M3_MAX = 448.0
_FLOAT_INPUTS = (torch.float32, torch.bfloat16, torch.float16)


def ceil_pow2_exponent(v: Tensor) -> Tensor:
    """The e8m0 byte (uint8) of the smallest power of two at or above each float32 ``v``.

    Defined for positive normal ``v`` up to 2^127; subnormal input gives byte 1 (2^-126), never 0.
    """
    bits = v.contiguous().view(torch.int32)
    return (((bits - 1) >> 23) + 1).clamp(min=1).to(torch.uint8)


def inverse_pow2(exponent: Tensor) -> Tensor:
    """``2^(127 - exponent)`` as float32 for e8m0 bytes 1 to 253, where the reciprocal is a normal number."""
    return ((254 - exponent.to(torch.int32)) << 23).view(torch.float32)


def decode_e8m0(scales: Tensor) -> Tensor:
    """``2^(s - 127)`` as float32 for e8m0 bytes (uint8); byte 255 is NaN."""
    wide = scales.to(torch.int32)
    bits = torch.where(wide == 0, 1 << 22, wide << 23)
    return torch.where(wide == 255, 0x7FC00000, bits).view(torch.float32)


def encode_e4m3(v: Tensor) -> Tensor:
    """E4m3fn bytes (uint8) of float32 ``v``: round to nearest even, saturating at +-448."""
    # Past 464 the plain conversion gives NaN or 448, depending on the release of torch.
    return v.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def decode_e4m3(codes: Tensor) -> Tensor:
    """Float32 values of e4m3fn bytes (uint8); 0x7f and 0xff are NaN."""
    # Looking the values up is three times as fast as converting each element.
    values = torch.arange(256, dtype=torch.uint8, device=codes.device).view(torch.float8_e4m3fn)
    index = codes.reshape(-1).to(torch.int32)
    return values.to(torch.float32).index_select(0, index).view(codes.shape)


def encode_e2m1(v: Tensor) -> Tensor:
    """E2m1 codes 0 to 15 (uint8) of float32 ``v``: nearest, ties to the even code, saturating at +-6."""
    magnitude = v.abs()
    code = torch.signbit(v).to(torch.uint8) << 3
    for midpoint, tie_goes_up in _E2M1_MIDPOINTS:
        code += magnitude >= midpoint if tie_goes_up else magnitude > midpoint
    return code


def decode_e2m1(codes: Tensor) -> Tensor:
    """Float32 values of e2m1 codes 0 to 15 (uint8, one per byte)."""
    index = codes.reshape(-1).to(torch.int32)
    return _e2m1_values(codes.device).index_select(0, index).view(codes.shape)


def decode_packed_e2m1(packed: Tensor) -> Tensor:
    """Float32 values [..., 2n] of packed e2m1 codes uint8 [..., n], low nibble = even channel."""
    values = _e2m1_values(packed.device)
    pairs = torch.stack((values.repeat(16), values.repeat_interleave(16)), dim=-1)
    index = packed.reshape(-1).to(torch.int32)
    return pairs.index_select(0, index).view(*packed.shape[:-1], 2 * packed.shape[-1])


def pack_nibbles(codes: Tensor) -> Tensor:
    """Put codes uint8 [..., 2n] two to a byte, [..., n]: the low nibble is the even channel."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Undo ``pack_nibbles``: uint8 [..., n] to [..., 2n]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def split_groups(x: Tensor, group: int) -> Tensor:
    """Cut the last axis into groups: [..., C] to [..., C/group, group]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // group, group)


def group_amax(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Groups of the last axis, float32 [..., C/group, group], and their largest magnitudes [..., C/group].

    Raises:
        NonFiniteError: ``x`` holds NaN or infinity. The formats have no code for either.
        ValueError: the last axis is not a multiple of ``group``.
        TypeError: the dtype of ``x`` is not float32, bfloat16 or float16 (float64 would round twice).
    """
    if x.dtype not in _FLOAT_INPUTS:
        raise TypeError(f"cannot quantise {x.dtype}; give float32, bfloat16 or float16")
    if x.dim() == 0 or x.shape[-1] % group:
        raise ValueError(f"cannot cut shape {list(x.shape)} into groups of {group} channels")
    groups = split_groups(x.to(torch.float32), group)
    amax = groups.abs().amax(dim=-1)
    if not bool(torch.isfinite(amax).all()):
        raise NonFiniteError(f"cannot quantise a tensor of shape {list(x.shape)} that holds NaN or infinity")
    return groups, amax


def _e2m1_values(device: torch.device) -> Tensor:
    positive = torch.tensor(E2M1_MAGNITUDES, device=device)
    return torch.cat((positive, -positive))
