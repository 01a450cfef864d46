"""Manifold-constrained hyper-connections, profile strict: mixes, Sinkhorn, collapse and expand.

A lane holds a row. A sum over a small axis of a tile is written as a chain: each term is singled out by a sum
with zeros, which is exact because all terms here are positive or +0.

Legend: T rows, S residual streams (a power of two), D model width.
"""

from __future__ import annotations

import math

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import exp, rounded, rsqrt, sigmoid
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
)
from deepinfer.kernels.gpu.linear import PackedLinear, linear
from deepinfer.kernels.gpu.norms import square_sums

_LANES, _FEW_LANES, _WIDTH = 32, 2, 256
"""Rows of a program; few where no sum over the width is left to do, so that a warp has one value a thread."""


@device
def _row_sums(p: Block, S: tl.constexpr) -> Block:
    """Chains over ascending b of ``p`` [LANES, S (a), S (b)] -> [LANES, S, 1]."""
    b = tl.arange(0, S)[None, None, :]
    total = tl.sum(tl.where(b == 0, p, 0.0), axis=2)
    for i in tl.static_range(1, S):
        total = total + tl.sum(tl.where(b == i, p, 0.0), axis=2)
    return total[:, :, None]


@device
def _column_sums(p: Block, S: tl.constexpr) -> Block:
    """Chains over ascending a -> [LANES, 1, S]."""
    a = tl.arange(0, S)[None, :, None]
    total = tl.sum(tl.where(a == 0, p, 0.0), axis=1)
    for i in tl.static_range(1, S):
        total = total + tl.sum(tl.where(a == i, p, 0.0), axis=1)
    return total[:, None, :]


@device
def _quotient(p: Block, total: Block) -> Block:
    return tl.div_rn(p, tl.broadcast_to(total, p.shape))


@device
def _sinkhorn(z: Block, iterations: int, eps: float, S: tl.constexpr) -> Block:
    """Logits [LANES, S, S] -> doubly normalised matrices; columns are normalised last."""
    p = exp(z - tl.max(z, axis=2)[:, :, None])
    p = _quotient(p, _row_sums(p, S)) + eps
    p = _quotient(p, _column_sums(p, S) + eps)
    for _ in range(1, iterations):
        p = _quotient(p, _row_sums(p, S) + eps)
        p = _quotient(p, _column_sums(p, S) + eps)
    return p


@kernel
def _mix_kernel(
    streams: Ptr,
    products: Ptr,
    squares: Ptr,
    base: Ptr,
    scale: Ptr,
    pre: Ptr,
    post: Ptr,
    comb: Ptr,
    iterations: int,
    hc_eps: float,
    rms_eps: float,
    num_rows: int,
    width: int,
    S: tl.constexpr,
    LANES: tl.constexpr,
    GIVEN: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Coefficients from ``streams`` [T, width = S * D] and ``products`` [T, S * S + 2 S].

    GIVEN: the sums of squares come from elsewhere, [T].
    """
    if EARLY:
        after_launches_before()
    rows = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = rows < num_rows
    if GIVEN:
        total = tl.load(squares + rows, inside, other=0.0)
    else:
        total = square_sums(streams + rows * width, inside, width, LANES)
    factor = rsqrt(tl.div_rn(total, tl.zeros((LANES,), tl.float32) + width) + rms_eps)
    n = tl.arange(0, S)
    own, within = rows[:, None] * (S * S + 2 * S) + n[None, :], inside[:, None] & (n >= 0)[None, :]
    zeros = tl.zeros((LANES, S), tl.float32)
    targets = rows[:, None] * S + n[None, :]
    m = tl.load(products + own, within, other=0.0) * factor[:, None]
    y = tl.fma(m, zeros + tl.load(scale), zeros + tl.load(base + n)[None, :])
    tl.store(pre + targets, sigmoid(y) + hc_eps, within)
    m = tl.load(products + own + S, within, other=0.0) * factor[:, None]
    y = tl.fma(m, zeros + tl.load(scale + 1), zeros + tl.load(base + S + n)[None, :])
    tl.store(post + targets, 2.0 * sigmoid(y), within)
    cell = n[:, None] * S + n[None, :]
    own = rows[:, None, None] * (S * S + 2 * S) + 2 * S + cell[None, :, :]
    within = inside[:, None, None] & (cell >= 0)[None, :, :]
    zeros = tl.zeros((LANES, S, S), tl.float32)
    m = tl.load(products + own, within, other=0.0) * factor[:, None, None]
    z = tl.fma(m, zeros + tl.load(scale + 2), zeros + tl.load(base + 2 * S + cell)[None, :, :])
    places = rows[:, None, None] * (S * S) + cell[None, :, :]
    tl.store(comb + places, _sinkhorn(z, iterations, hc_eps, S), within)


@kernel
def _collapse_kernel(
    streams: Ptr,
    pre: Ptr,
    out: Ptr,
    width: int,
    S: tl.constexpr,
    BD: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    acc = tl.zeros((BD,), tl.float32)
    for n in tl.static_range(S):
        factor = tl.zeros((BD,), tl.float32) + tl.load(pre + row * S + n)
        acc = tl.fma(factor, tl.load(streams + (row * S + n) * width + d, d < width, other=0.0), acc)
    tl.store(out + row * width + d, rounded(acc, BF16), d < width)


@kernel
def _expand_kernel(
    streams: Ptr,
    added: Ptr,
    post: Ptr,
    comb: Ptr,
    out: Ptr,
    width: int,
    S: tl.constexpr,
    BD: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.program_id(2) * BD + tl.arange(0, BD)
    acc = tl.load(post + row * S + b) * tl.load(added + row * width + d, d < width, other=0.0)
    for a in tl.static_range(S):
        factor = tl.zeros((BD,), tl.float32) + tl.load(comb + (row * S + a) * S + b)
        acc = tl.fma(factor, tl.load(streams + (row * S + a) * width + d, d < width, other=0.0), acc)
    tl.store(out + (row * S + b) * width + d, rounded(acc, BF16), d < width)


def hc_mix(
    streams: torch.Tensor,
    fn: PackedLinear,
    base: torch.Tensor,
    scale: torch.Tensor,
    iterations: int,
    hc_eps: float,
    rms_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float32 [T, S, D] -> ``pre`` [T, S], ``post`` [T, S], ``comb`` [T, S (input), S (output)].

    Raises:
        ValueError: S is not a power of two.
    """
    flat = streams.flatten(1).contiguous()
    return mix(flat, linear(flat, fn, False), None, base, scale, iterations, hc_eps, rms_eps)


def mix(
    flat: torch.Tensor,
    products: torch.Tensor,
    squares: torch.Tensor | None,
    base: torch.Tensor,
    scale: torch.Tensor,
    iterations: int,
    hc_eps: float,
    rms_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As ``hc_mix``, from products with ``fn`` [T, S * S + 2 S] and, if given, sums of squares [T]."""
    num_rows, num_streams = len(flat), math.isqrt(products.shape[1] + 1) - 1
    if num_streams & (num_streams - 1):
        raise ValueError(f"hc_mix: {num_streams} streams; the device kernel needs a power of two")
    pre, post = flat.new_empty(num_rows, num_streams), flat.new_empty(num_rows, num_streams)
    comb = flat.new_empty(num_rows, num_streams, num_streams)
    sums = flat if squares is None else squares
    lanes = _LANES if squares is None else _FEW_LANES
    launch(
        _mix_kernel,
        (ceil_div(num_rows, lanes),),
        *(flat, products, sums, base, scale, pre, post, comb, iterations, hc_eps, rms_eps),
        *(num_rows, flat.shape[1]),
        num_warps=1,
        S=num_streams,
        LANES=lanes,
        GIVEN=squares is not None,
    )
    return pre, post, comb


def hc_collapse(streams: torch.Tensor, pre: torch.Tensor, bf16: bool) -> torch.Tensor:
    """[T, S, D], [T, S] -> [T, D]: chain over ascending streams."""
    source, factors = streams.contiguous(), pre.contiguous()
    num_rows, num_streams, width = source.shape
    out = source.new_empty(num_rows, width)
    grid = (num_rows, ceil_div(width, _WIDTH))
    launch(_collapse_kernel, grid, source, factors, out, width, S=num_streams, BD=_WIDTH, BF16=bf16)
    return out


def hc_expand(
    streams: torch.Tensor, out: torch.Tensor, post: torch.Tensor, comb: torch.Tensor, bf16: bool
) -> torch.Tensor:
    """[T, S, D], [T, D], [T, S], [T, S, S] -> [T, S, D]: ``post * out``, then ascending input streams."""
    source, added = streams.contiguous(), out.contiguous()
    num_rows, num_streams, width = source.shape
    result = torch.empty_like(source)
    grid = (num_rows, num_streams, ceil_div(width, _WIDTH))
    arguments = (source, added, post.contiguous(), comb.contiguous(), result, width)
    launch(_expand_kernel, grid, *arguments, S=num_streams, BD=_WIDTH, BF16=bf16)
    return result
