"""Exact top-k of a row of ordered 16-bit keys of any length: two histograms, one of the upper bytes and one
of the lower bytes below the threshold's upper byte, and a pass that writes the answer.

Legend: T rows, L keys of a row.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Block, Ptr, device, kernel, launch, power_of_two


@device
def _at(line: Ptr, place: Block, count: Block, NEWEST: tl.constexpr) -> Block:
    """Keys as 0 to 65535, 0 where absent; 65535 for the newest, which no number has."""
    u = tl.load(line + place, place < count, other=-32768).to(tl.int32) + 32768
    return tl.where(place == count - 1, 65535, u) if NEWEST else u


@device
def _cut(counts: Block, wanted: Block) -> tuple[Block, Block]:
    """The highest bin that ``wanted`` counts reach from above, and how many lie above it."""
    reached = tl.cumsum(counts, axis=0, reverse=True)
    bin_number = tl.maximum(tl.sum((reached >= wanted).to(tl.int32), axis=0) - 1, 0)
    return bin_number, tl.sum(tl.where(tl.arange(0, 256) > bin_number, counts, 0), axis=0)


@kernel
def _long_kernel(
    keys: Ptr,
    counts: Ptr,
    chosen: Ptr,
    length: int,
    top: int,
    divisor: int,
    NEWEST: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """Three passes over a row of any length."""
    row = tl.program_id(0).to(tl.int64)
    line, out, lane = keys + row * length, chosen + row * top, tl.arange(0, B)
    count = min((tl.load(counts + row).to(tl.int32) + divisor - 1) // divisor, length)
    upper = tl.zeros((256,), tl.int32)
    for first in range(0, count, B):
        u = _at(line, first + lane, count, NEWEST)
        upper += tl.histogram(u >> 8, 256, mask=u > 0)
    wanted = min(tl.sum(upper, axis=0), top)
    high, above = _cut(upper, wanted)
    lower = tl.zeros((256,), tl.int32)
    for first in range(0, count, B):
        u = _at(line, first + lane, count, NEWEST)
        lower += tl.histogram(u & 255, 256, mask=(u > 0) & ((u >> 8) == high))
    low, more = _cut(lower, wanted - above)
    threshold, equals_wanted = high * 256 + low, wanted - above - more
    placed, equals = count * 0, count * 0
    for first in range(0, count, B):
        u = _at(line, first + lane, count, NEWEST)
        is_above, is_equal = (u > threshold).to(tl.int32), ((u == threshold) & (u > 0)).to(tl.int32)
        both = tl.cumsum((is_above << 16) | is_equal, axis=0)
        rank = equals + (both & 0xFFFF)
        keep = (is_above > 0) | ((is_equal > 0) & (rank <= equals_wanted))
        before = placed + (both >> 16) + tl.minimum(rank, equals_wanted) - 1
        tl.store(out + before, first + lane, keep)
        placed += tl.sum(is_above, axis=0)
        equals += tl.sum(is_equal, axis=0)


def select_long(
    keys: torch.Tensor, counts: torch.Tensor, top: int, divisor: int, newest: bool, warps: int, held: int
) -> torch.Tensor:
    """As ``select16.select16``; ``held`` keys at a time."""
    num_rows, length = keys.shape
    chosen = torch.full((num_rows, top), -1, dtype=torch.int32, device=keys.device)
    constants = {"NEWEST": newest, "B": min(held, power_of_two(length))}
    launch(
        _long_kernel, (num_rows,), keys, counts, chosen, length, top, divisor, num_warps=warps, **constants
    )
    return chosen
