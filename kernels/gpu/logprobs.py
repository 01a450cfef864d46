"""Log-softmax over the vocabulary and log-probabilities of given tokens, profile strict.

The sum of exponentials is cut into blocks of 128 ids: a lane adds up one block, then one lane per row adds up
the blocks, both ascending. Extra memory is one float32 per block and row.

Legend: T rows, V vocabulary, B = ceil(V / 128) blocks.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import exp
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch
from deepinfer.kernels.gpu.narrow_log import log_by

BLOCK = 128
_LANES, _TILE = 32, 2048


@kernel
def _largest_kernel(logits: Ptr, largest: Ptr, vocabulary: int, TILE: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, TILE)
    best = tl.full((TILE,), float("-inf"), tl.float32)
    for first in range(0, vocabulary, TILE):
        v = first + lane
        value = tl.load(logits + row * vocabulary + v, v < vocabulary, other=float("-inf"))
        best = tl.where(value > best, value, best)
    tl.store(largest + row, tl.max(best, axis=0))


@kernel
def _exponential_sums_kernel(
    logits: Ptr, largest: Ptr, sums: Ptr, vocabulary: int, num_blocks: int, LANES: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * LANES + tl.arange(0, LANES)
    top = tl.load(largest + row)
    total = tl.zeros((LANES,), tl.float32)
    for i in range(0, 128):
        v = block * 128 + i
        value = tl.load(logits + row * vocabulary + v, v < vocabulary, other=0.0)
        total = total + tl.where(v < vocabulary, exp(value - top), 0.0)
    tl.store(sums + row * num_blocks + block, total, block < num_blocks)


@kernel
def _mass_sums_kernel(masses: Ptr, sums: Ptr, vocabulary: int, num_blocks: int, LANES: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * LANES + tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float32)
    for i in range(0, 128):
        v = block * 128 + i
        total = total + tl.load(masses + row * vocabulary + v, v < vocabulary, other=0.0)
    tl.store(sums + row * num_blocks + block, total, block < num_blocks)


@kernel
def _chain_kernel(sums: Ptr, totals: Ptr, num_rows: int, num_blocks: int, LANES: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    total = tl.zeros((LANES,), tl.float32)
    for block in range(0, num_blocks):
        total = total + tl.load(sums + row * num_blocks + block, row < num_rows, other=0.0)
    tl.store(totals + row, total, row < num_rows)


@kernel
def _subtract_kernel(
    logits: Ptr,
    largest: Ptr,
    totals: Ptr,
    out: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    FP64: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * TILE + tl.arange(0, TILE)
    top, normaliser = tl.load(largest + row), log_by(tl.load(totals + row), FP64)
    value = tl.load(logits + row * vocabulary + v, v < vocabulary, other=0.0)
    tl.store(out + row * vocabulary + v, (value - top) - normaliser, v < vocabulary)


@kernel
def _gather_kernel(
    logits: Ptr,
    largest: Ptr,
    totals: Ptr,
    targets: Ptr,
    logprobs: Ptr,
    ranks: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    FP64: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    value = tl.load(logits + row * vocabulary + target)
    normaliser = log_by(tl.load(totals + row), FP64)
    tl.store(logprobs + row, (value - tl.load(largest + row)) - normaliser)
    lane = tl.arange(0, TILE)
    rank = tl.zeros((TILE,), tl.int32)
    for first in range(0, vocabulary, TILE):
        v = first + lane
        other = tl.load(logits + row * vocabulary + v, v < vocabulary, other=float("-inf"))
        ahead = (other > value) | ((other == value) & (v < target))
        rank += (ahead & (v < vocabulary)).to(tl.int32)
    tl.store(ranks + row, tl.sum(rank, axis=0))


def largest_of(logits: torch.Tensor) -> torch.Tensor:
    """Largest value of every row: float32 [T, V] -> [T]."""
    largest = logits.new_empty(logits.shape[0])
    launch(_largest_kernel, (logits.shape[0],), logits, largest, logits.shape[1], TILE=_TILE)
    return largest


def mass_sums(masses: torch.Tensor) -> torch.Tensor:
    """Sums of non-negative masses float32 [T, V] in the order of log-softmax -> [T]."""
    num_rows, vocabulary = masses.shape
    num_blocks = ceil_div(vocabulary, BLOCK)
    sums = masses.new_empty(num_rows, num_blocks)
    grid = (num_rows, ceil_div(num_blocks, _LANES))
    launch(_mass_sums_kernel, grid, masses, sums, vocabulary, num_blocks, num_warps=1, LANES=_LANES)
    return _chained(sums)


def _chained(sums: torch.Tensor) -> torch.Tensor:
    num_rows, num_blocks = sums.shape
    totals = sums.new_empty(num_rows)
    grid = (ceil_div(num_rows, _LANES),)
    launch(_chain_kernel, grid, sums, totals, num_rows, num_blocks, num_warps=1, LANES=_LANES)
    return totals


def _normalisers(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest logit and sum of exponentials of every row."""
    num_rows, vocabulary = logits.shape
    num_blocks = ceil_div(vocabulary, BLOCK)
    largest, sums = largest_of(logits), logits.new_empty(num_rows, num_blocks)
    grid = (num_rows, ceil_div(num_blocks, _LANES))
    arguments = (logits, largest, sums, vocabulary, num_blocks)
    launch(_exponential_sums_kernel, grid, *arguments, num_warps=1, LANES=_LANES)
    return largest, _chained(sums)


def log_softmax(logits: torch.Tensor, fp64: bool = True) -> torch.Tensor:
    """All log-probabilities: float32 [T, V] -> [T, V], the same bits ``token_logprobs`` gathers.

    ``fp64``: whether the chip computes in float64; the bits are the same.
    """
    source = logits.contiguous()
    out = torch.empty_like(source)
    num_rows, vocabulary = source.shape
    grid = (num_rows, ceil_div(vocabulary, _TILE))
    arguments = (source, *_normalisers(source), out, vocabulary)
    launch(_subtract_kernel, grid, *arguments, TILE=_TILE, FP64=fp64)
    return out


def token_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, fp64: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [T, V], int64 [T] -> log-probabilities float32 [T] and ranks int32 [T]; see ``Ops``.

    ``fp64``: as for ``log_softmax``.
    """
    source = logits.contiguous()
    num_rows, vocabulary = source.shape
    logprobs = source.new_empty(num_rows)
    ranks = torch.empty(num_rows, dtype=torch.int32, device=source.device)
    arguments = (source, *_normalisers(source), targets.contiguous(), logprobs, ranks, vocabulary)
    launch(_gather_kernel, (num_rows,), *arguments, TILE=_TILE, FP64=fp64)
    return logprobs, ranks
