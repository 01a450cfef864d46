"""FP8 weights in 32 x 32 blocks as the matrix kernel reads them: half the bytes of bfloat16, the same bits.

An e4m3 code moved to the places a bfloat16 has its bits is the value times 2**-120, subnormals included, so
one exact multiplication by ``2**120 * scale`` gives the bfloat16 that the weight is. Channels come in runs of
128, 32 words of four codes: code j of lane h of word x is channel ``64 * j + 2 * x + h`` of its run. So the
low bytes of all lanes are 64 channels in their order, the high bytes the next 64; no value changes its lane,
and a product takes channels in ascending order, as that of bfloat16 weights does.

Legend: N rows (outputs), K channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.lanes import both_of, doubled, times
from deepinfer.kernels.gpu.launching import Block, device

RUN = 128
"""Channels that are packed together."""
SIDE = 32
"""Rows and channels of a block, which share a scale."""
_LEAST, _MOST = 1, 134
"""Scale bytes whose factor, 2**(scale - 127 + 120), is a bfloat16."""


@dataclass(frozen=True)
class Fp8Weights:
    """``words`` int32 [N, K' / 4], K' a multiple of 128, and ``scales`` int32 [K' / 128, N].

    A word of scales holds the four e8m0 bytes of a row in a run: loads of whole words can be in flight.
    """

    words: torch.Tensor
    scales: torch.Tensor

    @property
    def num_outputs(self) -> int:
        """N."""
        return self.words.shape[0]


def pack_fp8(codes: torch.Tensor, scales: torch.Tensor) -> Fp8Weights:
    """Pack a weight in checkpoint order.

    Args:
        codes: uint8 [N, K], e4m3, none of them NaN.
        scales: uint8 [ceil(N / 32), ceil(K / 32)], e8m0.

    Raises:
        ValueError: shapes that do not belong together, or a scale that no trained weight has.
    """
    outputs, inputs = codes.shape
    if scales.shape != (-(-outputs // SIDE), -(-inputs // SIDE)):
        raise ValueError(f"FP8 weights: scales {list(scales.shape)} do not fit codes {list(codes.shape)}")
    if scales.numel() and not _LEAST <= int(scales.min()) <= int(scales.max()) <= _MOST:
        raise ValueError(f"FP8 weights: scale bytes must lie in {_LEAST} to {_MOST}")
    padded = torch.nn.functional.pad(codes, (0, -inputs % RUN)).view(outputs, -1, 2, RUN // 4, 2)
    # bytes of a word, from the low one: lane 0 code 0, lane 0 code 1, lane 1 code 0, lane 1 code 1
    words = padded.permute(0, 1, 3, 4, 2).contiguous().view(outputs, -1).view(torch.int32)
    missing = words.shape[1] * 4 // SIDE - scales.shape[1]
    of_rows = torch.nn.functional.pad(scales, (0, missing), value=127).repeat_interleave(SIDE, 0)[:outputs]
    return Fp8Weights(words, of_rows.contiguous().view(torch.int32).T.contiguous())


def exact_fp8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Codes uint8 [N, K], scales uint8 [ceil(N / 32), ceil(K / 32)] of float32 [N, K]; None if not exact."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % SIDE, 0, -outputs % SIDE))
    blocks = padded.view(padded.shape[0] // SIDE, SIDE, padded.shape[1] // SIDE, SIDE)
    share = blocks.abs().amax((1, 3)) / 448
    if not bool(share.isfinite().all()):
        return None
    exponent = (((share.view(torch.int32) - 1) >> 23) + 1).clamp(_LEAST, 254)
    if exponent.numel() and int(exponent.max()) > _MOST:
        return None
    scaled = torch.ldexp(blocks, (127 - exponent)[:, None, :, None])
    codes = scaled.to(torch.float8_e4m3fn)
    if not torch.equal(codes.to(torch.float32), scaled):
        return None
    plain = codes.view(torch.uint8).view(padded.shape)[:outputs, :inputs]
    return plain.contiguous(), exponent.to(torch.uint8)


@device
def fp8_half(words: Block, factors: Block, HIGH: tl.constexpr) -> Block:
    """Channels 0 to 63, or 64 to 127, of words int32 [N, 32], times their factors: bfloat16 [N, 64]."""
    if HIGH:
        lanes = (words & -0x7FFF8000) | ((words >> 4) & 0x07F007F0)
    else:
        lanes = ((words << 8) & -0x7FFF8000) | ((words << 4) & 0x07F007F0)
    return both_of(times(lanes, factors))


@device
def fp8_factors(scales: Block, HIGH: tl.constexpr) -> Block:
    """Factors [N, 32] of the words of a run, from its scales int32 [N]."""
    place = 8 * (tl.arange(0, 32) // 16 + 2 * HIGH)
    return doubled((((scales[:, None] >> place[None, :]) & 255) + 120) << 7)
