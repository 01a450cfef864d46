"""From one sublayer to the next in one launch, profile fast: pairs of experts combined, streams expanded,
collapsed again, and the norm.

The same operations in the same order as ``expert_gemm.combine``, ``hyper.hc_expand`` and
``site_rows.site_row``, so the same bits; in a decode turn a launch costs more than its work.

Legend: T rows, P pairs of row and expert, k experts a token, S residual streams, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded, rsqrt
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    ceil_div,
    device,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.operands import SiteInput

MOST = 512
"""Channels of a row that one program takes as a whole; wider rows are expanded by several. Beyond that a
thread would hold more channels of bfloat16 pairs than of float32 rows, and the norm would be another sum.
"""
_WIDTH = 256


@dataclass(frozen=True)
class Pairs:
    """What a mixture of experts adds, still in parts.

    Attributes:
        routed: bfloat16 [P, D], pairs of a row one after the other.
        shared: float32 [T, D].
        per_row: k.
    """

    routed: torch.Tensor
    shared: torch.Tensor
    per_row: int


@device
def _added(
    source: Ptr, shared: Ptr, row: Block, d: Block, inside: Block, width: int, PER_ROW: tl.constexpr
) -> Block:
    """What the sublayer adds to channels ``d`` of a row: as it is, or ``((0 + y_0) + y_1 ...) + shared``."""
    if PER_ROW == 0:
        value = tl.load(source + row * width + d, inside, other=0.0)
    else:
        total = tl.zeros(d.shape, tl.float32)
        for i in tl.static_range(PER_ROW):
            y = tl.load(source + (row * PER_ROW + i) * width + d, inside, other=0.0)
            total = total + y.to(tl.float32)
        value = rounded(total + tl.load(shared + row * width + d, inside, other=0.0), True)
    return value


@kernel
def _turn_kernel(
    streams: Ptr,
    source: Ptr,
    shared: Ptr,
    post: Ptr,
    comb: Ptr,
    pre: Ptr,
    gain: Ptr,
    out: Ptr,
    normed: Ptr,
    eps: float,
    width: int,
    S: tl.constexpr,
    PER_ROW: tl.constexpr,
    NORM: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """Some channels of a row, all of them if ``NORM``."""
    if EARLY:
        after_launches_before()
    row, d = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside, zeros = d < width, tl.zeros((TILE,), tl.float32)
    value, collapsed = _added(source, shared, row, d, inside, width, PER_ROW), zeros
    for b in tl.static_range(S):
        acc = tl.load(post + row * S + b) * value
        for a in tl.static_range(S):
            factor = zeros + tl.load(comb + (row * S + a) * S + b)
            acc = tl.fma(factor, tl.load(streams + (row * S + a) * width + d, inside, other=0.0), acc)
        acc = rounded(acc, True)
        tl.store(out + (row * S + b) * width + d, acc, inside)
        if NORM:
            collapsed = tl.fma(zeros + tl.load(pre + row * S + b), acc, collapsed)
    if NORM:
        x = rounded(collapsed, True)
        squares = tl.fma(x, x, zeros)
        mean = tl.div_rn(tl.sum(squares, axis=0), tl.full((), 0.0, tl.float32) + width)
        y = x * rsqrt(mean + eps) * tl.load(gain + d, inside, other=0.0)
        tl.store(normed + row * width + d, rounded(y, True), inside)


def fits(width: int) -> bool:
    """Whether ``turned`` takes rows of so many channels."""
    return width <= MOST


def expanded(streams: torch.Tensor, added: torch.Tensor | Pairs, site: SiteInput) -> torch.Tensor:
    """Streams float32 [T, S, D] behind the sublayer of ``site``, which adds float32 [T, D]."""
    return _turn(streams, added, site, None, 0.0)[0]


def turned(
    streams: torch.Tensor, added: torch.Tensor | Pairs, site: SiteInput, gain: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``expanded``, and the input float32 [T, D] of the sublayer behind it, whose norm has ``gain`` [D].

    Raises:
        ValueError: D is more than 512.
    """
    if not fits(streams.shape[2]):
        raise ValueError(f"turned: rows of {streams.shape[2]} channels; one program takes {MOST}")
    return _turn(streams, added, site, gain, eps)


def _turn(
    streams: torch.Tensor,
    added: torch.Tensor | Pairs,
    site: SiteInput,
    gain: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    source = streams.contiguous()
    num_rows, num_streams, width = source.shape
    out = torch.empty_like(source)
    if isinstance(added, Pairs):
        parts, per_row = (added.routed.contiguous(), added.shared.contiguous()), added.per_row
    else:
        parts, per_row = (added.contiguous(),) * 2, 0
    normed = out if gain is None else source.new_empty(num_rows, width)
    tile = _WIDTH if gain is None else power_of_two(width)
    launch(
        _turn_kernel,
        (num_rows, ceil_div(width, tile)),
        *(source, *parts, site.post.contiguous(), site.comb.contiguous(), site.pre.contiguous()),
        *(normed if gain is None else gain.contiguous(), out, normed, eps, width),
        S=num_streams,
        PER_ROW=per_row,
        NORM=gain is not None,
        TILE=tile,
    )
    return out, normed
