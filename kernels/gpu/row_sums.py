"""Sums over the channels of a row, profile fast: one program a row, one reduction tree of a fixed shape.

The tree depends on the width alone, so a row's bits do not depend on how many rows there are.

Legend: T rows, D channels, S streams, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import copy_sign, exp, greater, log, rounded, rsqrt, sigmoid
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)

_TILE = 4096


@device
def _mean(total: Block, count: int) -> Block:
    return tl.div_rn(total, tl.full((), 0.0, tl.float32) + count)


@kernel
def _norm_kernel(
    x: Ptr,
    gain: Ptr,
    out: Ptr,
    eps: float,
    width: int,
    TILE: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    line = tl.program_id(0).to(tl.int64) * width
    lane = tl.arange(0, TILE)
    squares = tl.zeros((TILE,), tl.float32)
    for first in range(0, width, TILE):
        value = tl.load(x + line + first + lane, first + lane < width, other=0.0)
        squares = tl.fma(value, value, squares)
    scale = rsqrt(_mean(tl.sum(squares, axis=0), width) + eps)
    for first in range(0, width, TILE):
        d = first + lane
        weight = tl.load(gain + d, d < width, other=0.0)
        y = tl.load(x + line + d, d < width, other=0.0) * scale * weight
        tl.store(out + line + d, rounded(y, BF16), d < width)


@kernel
def _squares_kernel(
    x: Ptr,
    out: Ptr,
    width: int,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    squares = tl.zeros((TILE,), tl.float32)
    for first in range(0, width, TILE):
        value = tl.load(x + row * width + first + lane, first + lane < width, other=0.0)
        squares = tl.fma(value, value, squares)
    tl.store(out + row, tl.sum(squares, axis=0))


@kernel
def _site_kernel(
    x: Ptr,
    parts: Ptr,
    products: Ptr,
    squares: Ptr,
    width: int,
    num_outputs: int,
    TILE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """``_squares_kernel``, and ``(p_0 + p_1) + p_2`` of the products of the row."""
    if EARLY:
        after_launches_before()
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for first in range(0, width, TILE):
        value = tl.load(x + row * width + first + lane, first + lane < width, other=0.0)
        total = tl.fma(value, value, total)
    tl.store(squares + row, tl.sum(total, axis=0))
    n = tl.arange(0, OUTPUTS)
    inside, source = n < num_outputs, parts + row * 3 * num_outputs + n
    found = tl.load(source, inside, other=0.0) + tl.load(source + num_outputs, inside, other=0.0)
    found = found + tl.load(source + 2 * num_outputs, inside, other=0.0)
    tl.store(products + row * num_outputs + n, found, inside)


@kernel
def _gate_kernel(
    streams: Ptr,
    kv: Ptr,
    gains: Ptr,
    out: Ptr,
    eps: float,
    factor: float,
    num_streams: int,
    width: int,
    TILE: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    item, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    row, own = item // num_streams, item % num_streams
    source, keys = streams + item * width, kv + (row * (num_streams + 1) + own) * width
    squares_x, squares_k = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    dot = tl.zeros((TILE,), tl.float32)
    for first in range(0, width, TILE):
        d = first + lane
        x, key = tl.load(source + d, d < width, other=0.0), tl.load(keys + d, d < width, other=0.0)
        gain = tl.load(gains + own * width + d, d < width, other=0.0)
        squares_x, squares_k = tl.fma(x, x, squares_x), tl.fma(key, key, squares_k)
        dot = tl.fma(x * gain, key, dot)
    a = rsqrt(_mean(tl.sum(squares_x, axis=0), width) + eps)
    b = rsqrt(_mean(tl.sum(squares_k, axis=0), width) + eps)
    score = tl.sum(dot, axis=0) * a * b * factor
    gate = sigmoid(copy_sign(tl.sqrt_rn(greater(tl.abs(score), 1e-6)), score))
    values = kv + (row * (num_streams + 1) + num_streams) * width
    for first in range(0, width, TILE):
        d = first + lane
        value = tl.load(values + d, d < width, other=0.0)
        y = tl.fma(value, tl.zeros((TILE,), tl.float32) + gate, tl.load(source + d, d < width, other=0.0))
        tl.store(out + item * width + d, rounded(y, BF16), d < width)


@kernel
def _logprob_kernel(
    logits: Ptr,
    targets: Ptr,
    logprobs: Ptr,
    ranks: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One pass: every lane keeps its largest logit, and its sum of exponentials against that."""
    if EARLY:
        after_launches_before()
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    line, target = logits + row * vocabulary, tl.load(targets + row)
    value = tl.load(line + target)
    top, total = tl.full((TILE,), -3.0e38, tl.float32), tl.zeros((TILE,), tl.float32)
    rank = tl.zeros((TILE,), tl.int32)
    for first in range(0, vocabulary, TILE):
        v = first + lane
        other = tl.load(line + v, v < vocabulary, other=float("-inf"))
        new = tl.where(other > top, other, top)
        total = total * exp(top - new) + exp(other - new)
        top = new
        ahead = (other > value) | ((other == value) & (v < target))
        rank += (ahead & (v < vocabulary)).to(tl.int32)
    largest = tl.max(top, axis=0)
    normaliser = log(tl.sum(total * exp(top - largest), axis=0))
    tl.store(logprobs + row, (value - largest) - normaliser)
    tl.store(ranks + row, tl.sum(rank, axis=0))


@kernel
def _log_softmax_kernel(
    logits: Ptr,
    out: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """The normaliser in the order of the gather above, then a second pass."""
    if EARLY:
        after_launches_before()
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    line = logits + row * vocabulary
    top, total = tl.full((TILE,), -3.0e38, tl.float32), tl.zeros((TILE,), tl.float32)
    for first in range(0, vocabulary, TILE):
        v = first + lane
        other = tl.load(line + v, v < vocabulary, other=float("-inf"))
        new = tl.where(other > top, other, top)
        total = total * exp(top - new) + exp(other - new)
        top = new
    largest = tl.max(top, axis=0)
    normaliser = log(tl.sum(total * exp(top - largest), axis=0))
    for first in range(0, vocabulary, TILE):
        v = first + lane
        value = tl.load(line + v, v < vocabulary, other=0.0)
        tl.store(out + row * vocabulary + v, (value - largest) - normaliser, v < vocabulary)


@kernel
def _mass_kernel(
    masses: Ptr,
    out: Ptr,
    vocabulary: int,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for first in range(0, vocabulary, TILE):
        v = first + lane
        total = total + tl.load(masses + row * vocabulary + v, v < vocabulary, other=0.0)
    tl.store(out + row, tl.sum(total, axis=0))


def _tile(width: int) -> int:
    return min(_TILE, power_of_two(width))


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float, bf16: bool) -> torch.Tensor:
    """``x * rsqrt(mean(x**2) + eps) * gain``: float32 [T, D] -> float32 [T, D]."""
    rows = x.contiguous()
    out = torch.empty_like(rows)
    arguments = (rows, gain.contiguous(), out, eps, rows.shape[1])
    launch(_norm_kernel, (len(rows),), *arguments, TILE=_tile(rows.shape[1]), BF16=bf16)
    return out


def site_sums(x: torch.Tensor, parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums that mixes begin with, in one launch.

    Args:
        x: float32 [T, D].
        parts: float32 [T, 3 * N], products of the rows with three parts of a weight.

    Returns:
        Products [T, N], and sums of squares [T].
    """
    count, num_outputs = len(x), parts.shape[1] // 3
    products, squares = x.new_empty(count, num_outputs), x.new_empty(count)
    launch(
        _site_kernel,
        (count,),
        *(x, parts, products, squares, x.shape[1], num_outputs),
        TILE=_tile(x.shape[1]),
        OUTPUTS=power_of_two(num_outputs),
    )
    return products, squares


def square_sums(x: torch.Tensor) -> torch.Tensor:
    """Sum of squares of every row: float32 [T, D] -> [T]."""
    out = x.new_empty(len(x))
    launch(_squares_kernel, (len(x),), x, out, x.shape[1], TILE=_tile(x.shape[1]))
    return out


def engram_gate(
    streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float, bf16: bool
) -> torch.Tensor:
    """Add the gated n-gram value to every stream: [T, S, D], [T, (S + 1) * D], [S, D] -> [T, S, D]."""
    source = streams.contiguous()
    num_rows, num_streams, width = source.shape
    out = torch.empty_like(source)
    factor = float(np.float32(1.0) / np.sqrt(np.float32(width)))
    arguments = (source, kv.contiguous(), gains.contiguous(), out, eps, factor, num_streams, width)
    launch(_gate_kernel, (num_rows * num_streams,), *arguments, TILE=_tile(width), BF16=bf16)
    return out


def log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """All log-probabilities: float32 [T, V] -> [T, V], the same bits ``token_logprobs`` gathers."""
    source = logits.contiguous()
    out = torch.empty_like(source)
    launch(_log_softmax_kernel, (len(source),), source, out, source.shape[1], TILE=_tile(source.shape[1]))
    return out


def token_logprobs(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [T, V], int64 [T] -> log-probabilities float32 [T] and ranks int32 [T]; see ``Ops``."""
    source = logits.contiguous()
    logprobs = source.new_empty(len(source))
    ranks = torch.empty(len(source), dtype=torch.int32, device=source.device)
    arguments = (source, targets.contiguous(), logprobs, ranks, source.shape[1])
    launch(_logprob_kernel, (len(source),), *arguments, TILE=_tile(source.shape[1]))
    return logprobs, ranks


def mass_sums(masses: torch.Tensor) -> torch.Tensor:
    """Sums of non-negative masses: float32 [T, V] -> [T]."""
    totals = masses.new_empty(len(masses))
    launch(_mass_kernel, (len(masses),), masses, totals, masses.shape[1], TILE=_tile(masses.shape[1]))
    return totals
