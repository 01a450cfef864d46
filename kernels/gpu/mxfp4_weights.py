"""MXFP4 weights as the matrix kernels read them: eight codes a word, one shift and one mask away from
bfloat16.

A code is a sign s, two exponent bits e and one mantissa bit m. As a bfloat16 pattern with s at bit 15 and eem
at bits 8 to 6 it is the value times 2**-126 (the zero exponent is subnormal in both formats), so that one
exact multiplication by ``2**126 * scale`` decodes it. A 16-bit lane holds four codes: three at the places
that a left shift by 0, 3 or 6 brings there, the fourth in the bits that are left over. Code j of all lanes
makes operand j of four products; no value ever has to change its lane.

Channels come in blocks of 64, eight words each: channel 16 * j + 2 * x + h of a block is code j of lane h of
word x. A scale (32 channels) therefore covers whole steps of the matrix unit, those of j = 0, 1 or j = 2, 3.

Legend: N rows (outputs), K channels, a multiple of 64 after padding with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.lanes import both_of, doubled, spread, times
from deepinfer.kernels.gpu.launching import Block, device

BLOCK = 64
_LARGEST = 128
"""Largest scale byte: 2 to the power of 1, or magnitudes up to 12; beyond it the multiplier is no bfloat16.
"""


@dataclass(frozen=True)
class Mxfp4Weights:
    """``words`` int32 [E, N, K / 8] and ``scales`` uint8 [E, K / 32, N], scale bytes plus 126."""

    words: torch.Tensor
    scales: torch.Tensor

    @property
    def num_outputs(self) -> int:
        """N."""
        return self.words.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of all words and scales."""
        return 4 * self.words.numel() + self.scales.numel()


def pack_codes(codes: torch.Tensor, scales: torch.Tensor) -> Mxfp4Weights:
    """Pack weights in checkpoint order.

    Args:
        codes: uint8 [E, N, K / 2], the even channel in the low nibble.
        scales: uint8 [E, N, K / 32], e8m0.

    Raises:
        ValueError: a scale above 2, which no trained weight has.
    """
    if scales.numel() and int(scales.max()) > _LARGEST:
        raise ValueError(f"MXFP4 weights: scale byte {int(scales.max())} is above {_LARGEST}")
    num_experts, num_outputs, half = codes.shape
    nibbles = torch.stack((codes & 15, codes >> 4), -1).view(num_experts, num_outputs, 2 * half)
    missing = -2 * half % BLOCK
    nibbles = torch.nn.functional.pad(nibbles, (0, missing))
    padded = torch.nn.functional.pad(scales, (0, missing // 32))
    lanes = nibbles.view(num_experts, num_outputs, -1, 4, 8, 2).to(torch.int32).unbind(3)
    signs, rest = [lane >> 3 for lane in lanes], [lane & 7 for lane in lanes]
    word = signs[0] << 15 | rest[0] << 6 | signs[1] << 12 | rest[1] << 3 | signs[2] << 9 | rest[2]
    word |= signs[3] << 14 | (rest[3] >> 2) << 13 | (rest[3] & 3) << 10
    words = (word[..., 0] | word[..., 1] << 16).view(num_experts, num_outputs, -1)
    return Mxfp4Weights(words.contiguous(), (padded + 126).transpose(1, 2).contiguous())


def joined(weights: list[Mxfp4Weights]) -> Mxfp4Weights:
    """The experts of all ``weights``, one after the other."""
    return Mxfp4Weights(torch.cat([w.words for w in weights]), torch.cat([w.scales for w in weights]))


def exact_codes(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Codes uint8 [N, K / 2], scales uint8 [N, K / 32] of float32 [N, K]; None if they are not exact."""
    outputs, inputs = weight.shape
    if inputs % 32:
        return None
    groups = weight.view(outputs, -1, 32)
    sixth = groups.abs().amax(-1).clamp(min=6.0 * 2.0**-126) * torch.tensor(1.0 / 6.0, dtype=torch.float32)
    exponent = ((sixth.view(torch.int32) - 1) >> 23) + 1
    values = torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), device=weight.device)
    magnitude = torch.ldexp(groups.abs(), (127 - exponent)[..., None])
    index = torch.searchsorted(values, magnitude.contiguous()).clamp(max=7)
    if int(exponent.max()) > _LARGEST or not torch.equal(values[index], magnitude):
        return None
    codes = (index | torch.signbit(groups).long() << 3).view(outputs, -1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, exponent.to(torch.uint8)


@device
def codes_of(words: Block, factors: Block, J: tl.constexpr) -> Block:
    """Codes ``J`` of int32 words [N, X], times their factors [N, X], as bfloat16 [N, 2 X]."""
    if J == 3:
        lanes = ((words >> 4) & 0x00C000C0) | ((words >> 5) & 0x01000100) | ((words << 1) & -0x7FFF8000)
    else:
        lanes = (words << (3 * J)) & -0x7E3F7E40  # sign and the three bits of both lanes: 0x81C081C0
    return both_of(times(lanes, factors))


@device
def multipliers(scales: Block) -> Block:
    """Scale bytes [N, G] as factors [N, 8 G], one for each word of a block."""
    return spread(doubled(scales.to(tl.int32) << 7), 8)


@device
def step_channels(DEPTH: tl.constexpr) -> Block:
    """Channels of code 0 in a run of ``DEPTH``, [DEPTH / 4]; those of code j lie 16 * j further."""
    i = tl.arange(0, DEPTH // 4)
    return i // 16 * 64 + i % 16
