"""Element-wise ops and sums over streams, profile strict."""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import exp, greater, rounded
from deepinfer.kernels.gpu.elementary import sigmoid as sigmoid_of
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
)

_BLOCK = 1024


@kernel
def _scale_kernel(
    x: Ptr,
    out: Ptr,
    factor: float,
    count: int,
    BLOCK: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, rounded(tl.load(x + i, i < count, other=0.0) * factor, BF16), i < count)


@kernel
def _sigmoid_kernel(
    x: Ptr,
    out: Ptr,
    count: int,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, sigmoid_of(tl.load(x + i, i < count, other=0.0)), i < count)


@kernel
def _confidence_kernel(
    x: Ptr,
    scores: Ptr,
    out: Ptr,
    most: float,
    count: int,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(x + i, i < count, other=0.0)
    score = tl.where(score > most, most, score)
    score = tl.where(score < -most, -most, score)
    tl.store(scores + i, score, i < count)
    tl.store(out + i, sigmoid_of(score), i < count)


@kernel
def _mean_kernel(
    streams: Ptr,
    out: Ptr,
    factor: float,
    width: int,
    STREAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for n in tl.static_range(STREAMS):
        total = total + tl.load(streams + (row * STREAMS + n) * width + d, d < width, other=0.0)
    tl.store(out + row * width + d, rounded(total * factor, BF16), d < width)


@device
def pooled(v0: Block, v1: Block, s0: Block, s1: Block, BF16: tl.constexpr) -> Block:
    """Two values weighted by the softmax of their scores, channel by channel."""
    largest = greater(s0, s1)
    e0, e1 = exp(s0 - largest), exp(s1 - largest)
    total = e0 + e1
    return rounded(tl.fma(tl.div_rn(e1, total), v1, tl.div_rn(e0, total) * v0), BF16)


@kernel
def _pool_kernel(
    values: Ptr,
    scores: Ptr,
    out: Ptr,
    width: int,
    BLOCK: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    group = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, inside = 2 * group * width + d, d < width
    s0 = tl.load(scores + first, inside, other=0.0)
    s1 = tl.load(scores + first + width, inside, other=0.0)
    v0 = tl.load(values + first, inside, other=0.0)
    v1 = tl.load(values + first + width, inside, other=0.0)
    tl.store(out + group * width + d, pooled(v0, v1, s0, s1, BF16), inside)


def scale(x: torch.Tensor, factor: float, bf16: bool) -> torch.Tensor:
    """``x * float32(factor)``, any shape."""
    source = x.contiguous()
    out = torch.empty_like(source)
    count = source.numel()
    launch(_scale_kernel, (ceil_div(count, _BLOCK),), source, out, factor, count, BLOCK=_BLOCK, BF16=bf16)
    return out


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-x))``, any shape."""
    source = x.contiguous()
    out = torch.empty_like(source)
    count = source.numel()
    launch(_sigmoid_kernel, (ceil_div(count, _BLOCK),), source, out, count, BLOCK=_BLOCK)
    return out


def confidences(x: torch.Tensor, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` kept within ``-most .. most``, and the sigmoid of that, any shape."""
    source = x.contiguous()
    scores, out = torch.empty_like(source), torch.empty_like(source)
    grid = (ceil_div(source.numel(), _BLOCK),)
    launch(_confidence_kernel, grid, source, scores, out, most, source.numel(), BLOCK=_BLOCK)
    return scores, out


def mean_streams(streams: torch.Tensor, bf16: bool) -> torch.Tensor:
    """float32 [T, S, D] -> [T, D]: sum over ascending streams, times 1/S."""
    source = streams.contiguous()
    num_rows, num_streams, width = source.shape
    out = torch.empty(num_rows, width, dtype=torch.float32, device=source.device)
    factor = float(np.float32(1.0) / np.float32(num_streams))
    grid = (num_rows, ceil_div(width, _BLOCK))
    launch(_mean_kernel, grid, source, out, factor, width, STREAMS=num_streams, BLOCK=_BLOCK, BF16=bf16)
    return out


def pool_pairs(values: torch.Tensor, scores: torch.Tensor, bf16: bool) -> torch.Tensor:
    """Two float32 [J, 2, C] -> [J, C]: softmax over the two tokens of a group, channel by channel."""
    source, weights = values.contiguous(), scores.contiguous()
    num_groups, _, width = source.shape
    out = torch.empty(num_groups, width, dtype=torch.float32, device=source.device)
    grid = (num_groups, ceil_div(width, _BLOCK))
    launch(_pool_kernel, grid, source, weights, out, width, BLOCK=_BLOCK, BF16=bf16)
    return out
