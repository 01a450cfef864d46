"""FP8 weights in 32 x 32 blocks as the matrix kernel of ``hopper_fp8.py`` reads them: half the bytes of
bfloat16, the same bits.

An e4m3 code moved to the places a bfloat16 has its bits is the value times 2**-120, subnormals included, so
one exact multiplication by ``2**120 * scale`` gives the bfloat16 that the weight is. Words lie as threads of
the matrix unit need them: eight outputs and 64 channels are 128 words in a row, four for each of 32 lanes.
Word j of lane ``4 * r + c`` holds of output r and channels ``16 * j + 2 * c`` and on those at 0, 8, 1 and 9,
from the low byte: both low bytes, or both high ones, of its halves are one register of the unit.

Legend: G groups, N rows (outputs) of one, K channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import bits_of, float_of
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch

RUN = 8
"""Outputs whose words lie together."""
QUARTER = 64
"""Channels whose words lie together."""
SIDE = 32
"""Rows and channels of a block, which share a scale."""
_RUNS = 8
"""Runs of a program that widens."""
_LEAST, _MOST = 1, 134
"""Scale bytes whose factor, 2**(scale - 127 + 120), is a bfloat16."""


@dataclass(frozen=True)
class Fp8Weights:
    """``words`` int32 [G, K / 64, N / 8, 32, 4] and ``factors`` int32 [G * N / 32, K / 32].

    A factor is ``2**120 * scale`` as a bfloat16, twice.
    """

    words: torch.Tensor
    factors: torch.Tensor

    @property
    def num_groups(self) -> int:
        """G."""
        return self.words.shape[0]

    @property
    def num_outputs(self) -> int:
        """N."""
        return self.words.shape[2] * RUN

    @property
    def num_inputs(self) -> int:
        """K."""
        return self.words.shape[1] * QUARTER


def pack_fp8(codes: torch.Tensor, scales: torch.Tensor, groups: int = 1) -> Fp8Weights:
    """Pack a weight in checkpoint order.

    Args:
        codes: uint8 [G * N, K], e4m3, none of them NaN; N a multiple of 32, K of 64.
        scales: uint8 [G * N / 32, K / 32], e8m0.
        groups: G.

    Raises:
        ValueError: shapes that do not belong together, or a scale that no trained weight has.
    """
    outputs, inputs = codes.shape
    if outputs % (SIDE * groups) or inputs % QUARTER or scales.shape != (outputs // SIDE, inputs // SIDE):
        raise ValueError(
            f"FP8 weights: codes {list(codes.shape)}, scales {list(scales.shape)}, {groups} groups do not fit"
        )
    if scales.numel() and not _LEAST <= int(scales.min()) <= int(scales.max()) <= _MOST:
        raise ValueError(f"FP8 weights: scale bytes must lie in {_LEAST} to {_MOST}")
    # group, run, output, quarter, step, half of a step, c, channel of a pair, the word's bytes last
    cut = codes.view(groups, -1, RUN, inputs // QUARTER, 4, 2, 4, 2).permute(0, 3, 1, 2, 6, 4, 7, 5)
    words = cut.contiguous().view(groups, inputs // QUARTER, -1, 32, 16).view(torch.int32)
    pattern = (scales.to(torch.int32) + 120) << 7
    return Fp8Weights(words, pattern | pattern << 16)


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


@kernel
def _widen_kernel(words: Ptr, factors: Ptr, out: Ptr, count: int, depth: int, RUNS: tl.constexpr) -> None:
    """``RUNS`` runs of eight outputs in one quarter, two channels a value, as they are written."""
    quarter, group = tl.program_id(0), tl.program_id(2)
    run = tl.program_id(1) * RUNS + tl.arange(0, RUNS)[:, None]
    i = tl.arange(0, 256)[None, :]
    output, step, half, c = i // 32, i // 8 % 4, i // 4 % 2, i % 4
    inside = (run < count) & (i < 256)
    at = ((group * (depth // 64) + quarter) * count + run).to(tl.int64) * 128
    codes = tl.load(words + at + output * 16 + c * 4 + step, inside, other=0) >> (8 * half)
    row = (group * count + run).to(tl.int64) * 8 + output
    by = tl.load(factors + row // 32 * (depth // 32) + quarter * 2 + step // 2, inside, other=0)
    by = float_of(by & -65536)
    low = float_of(((codes & 128) << 24) | ((codes & 127) << 20)) * by
    high = float_of(((codes >> 16 & 128) << 24) | ((codes >> 16 & 127) << 20)) * by
    pair = ((bits_of(low) >> 16) & 0xFFFF) | bits_of(high)
    tl.store(out + row * (depth // 2) + quarter * 32 + i % 32, pair, inside)


def widen(w: Fp8Weights, out: torch.Tensor) -> torch.Tensor:
    """The weights as bfloat16 [G, N, K] in ``out``, contiguous; returns it."""
    count, depth = w.num_outputs // RUN, w.num_inputs
    launch(
        _widen_kernel,
        (depth // QUARTER, ceil_div(count, _RUNS), w.num_groups),
        *(w.words, w.factors, out.view(torch.int32), count, depth),
        RUNS=_RUNS,
    )
    return out
