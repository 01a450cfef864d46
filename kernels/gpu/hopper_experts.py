"""Grouped products of routed experts for Hopper chips, many pairs an expert: decoding beside the matrix unit.

A program multiplies 128 pairs with two runs of 128 outputs (``hopper_products.py``): gate and up, or two of
the down product. The order of additions is that of ``expert_gemm.py``, value by value; the device script
compares the bits.

Legend: P pairs of row and expert, D model width, I inner width, J = 4 codes, 128 pairs and outputs a tile.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental.gluon import language as gl

from deepinfer.kernels.gpu.expert_groups import Tiles
from deepinfer.kernels.gpu.hopper_products import PRODUCTS, ROWS, two_products
from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.mxfp4_weights import Mxfp4Weights
from deepinfer.kernels.gpu.warp_groups import warp_kernel, warp_launch

PAIRS, OUTPUTS, DEPTH = 128, 128, 256
ACROSS: gl.constexpr = gl.constexpr(gl.BlockedLayout([8, 1], [16, 2], [1, 8], [0, 1]))


@warp_kernel
def _inner_kernel(
    x: Block,
    order: Block,
    expert_of: Block,
    first_of: Block,
    last_of: Block,
    shares: Block,
    gate: Block,
    gate_scales: Block,
    up: Block,
    up_scales: Block,
    out: Block,
    limit: Block,
    num_experts: Block,
    per_row: Block,
    width: Block,
    inner: Block,
    STEPS: gl.constexpr,
    CLAMP: gl.constexpr,
) -> None:
    columns = inner // 128
    tile, n0 = gl.program_id(0) // columns, gl.program_id(0) % columns * 128
    expert = gl.load(expert_of + tile).to(gl.int64)
    if expert < num_experts:
        first, last = gl.load(first_of + tile), gl.load(last_of + tile)
        i = first + gl.arange(0, 128, layout=gl.SliceLayout(1, ROWS))
        pairs = gl.load(order + i, mask=i < last, other=0)
        at = (expert * inner + n0) * (width // 8)
        scale_at = expert * (width // 32) * inner + n0
        g, u = two_products(
            x + pairs // per_row * width,
            gate + at,
            gate_scales + scale_at,
            up + at,
            up_scales + scale_at,
            width,
            inner,
            STEPS,
        )
        g, u = g.to(gl.bfloat16).to(gl.float32), u.to(gl.bfloat16).to(gl.float32)
        if CLAMP:
            g = gl.where(limit < g, limit, g)
            u = gl.where(limit < u, limit, u)
            u = gl.where(-limit > u, -limit, u)
        i = first + gl.arange(0, 128, layout=gl.SliceLayout(0, PRODUCTS))
        pairs = gl.load(order + i, mask=i < last, other=0)
        share = gl.load(shares + pairs, mask=i < last, other=0.0)
        h = g / (1.0 + gl.exp(-g)) * u * share[None, :]
        h = gl.convert_layout(h.to(gl.bfloat16), ACROSS)
        i = first + gl.arange(0, 128, layout=gl.SliceLayout(0, ACROSS))
        pairs = gl.load(order + i, mask=i < last, other=0)
        n = n0 + gl.arange(0, 128, layout=gl.SliceLayout(1, ACROSS))
        gl.store(out + pairs[None, :] * inner + n[:, None], h, mask=(i < last)[None, :])


@warp_kernel
def _outer_kernel(
    h: Block,
    order: Block,
    expert_of: Block,
    first_of: Block,
    last_of: Block,
    down: Block,
    down_scales: Block,
    out: Block,
    num_experts: Block,
    width: Block,
    inner: Block,
    STEPS: gl.constexpr,
) -> None:
    columns = width // 256
    tile, n0 = gl.program_id(0) // columns, gl.program_id(0) % columns * 256
    expert = gl.load(expert_of + tile).to(gl.int64)
    if expert < num_experts:
        first, last = gl.load(first_of + tile), gl.load(last_of + tile)
        i = first + gl.arange(0, 128, layout=gl.SliceLayout(1, ROWS))
        pairs = gl.load(order + i, mask=i < last, other=0)
        words = down + (expert * width + n0) * (inner // 8)
        scales = down_scales + expert * (inner // 32) * width + n0
        low, high = two_products(
            h + pairs * inner, words, scales, words + 128 * (inner // 8), scales + 128, inner, width, STEPS
        )
        i = first + gl.arange(0, 128, layout=gl.SliceLayout(0, ACROSS))
        pairs = gl.load(order + i, mask=i < last, other=0)
        n = n0 + gl.arange(0, 128, layout=gl.SliceLayout(1, ACROSS))
        places = out + pairs[None, :] * width + n[:, None]
        gl.store(places, gl.convert_layout(low.to(gl.bfloat16), ACROSS), mask=(i < last)[None, :])
        gl.store(places + 128, gl.convert_layout(high.to(gl.bfloat16), ACROSS), mask=(i < last)[None, :])


def fits(width: int, inner: int) -> bool:
    """Whether a layer's widths are whole steps and tiles."""
    return width % DEPTH == 0 and inner % DEPTH == 0


def inner_products(
    x: torch.Tensor,
    tiles: Tiles,
    shares: torch.Tensor,
    gate: Mxfp4Weights,
    up: Mxfp4Weights,
    limit: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As ``expert_gemm.inner_products`` with tiles of 128 pairs, for widths that fit."""
    num_experts, inner, _ = gate.words.shape
    out = x.new_empty(shares.numel(), inner) if out is None else out
    constants: dict[str, Any] = {"STEPS": x.shape[1] // DEPTH, "CLAMP": limit > 0}
    warp_launch(
        _inner_kernel,
        (len(tiles.expert) * (inner // OUTPUTS),),
        *(x, tiles.order, tiles.expert, tiles.first, tiles.last, shares, gate.words, gate.scales, up.words),
        *(up.scales, out, limit, num_experts, shares.shape[1], x.shape[1], inner),
        num_warps=8,
        **constants,
    )
    return out


def outer_products(
    h: torch.Tensor, tiles: Tiles, down: Mxfp4Weights, out: torch.Tensor | None = None
) -> torch.Tensor:
    """As ``expert_gemm.outer_products``, likewise."""
    num_experts, width, _ = down.words.shape
    out = h.new_empty(len(h), width) if out is None else out
    constants: dict[str, Any] = {"STEPS": h.shape[1] // DEPTH}
    warp_launch(
        _outer_kernel,
        (len(tiles.expert) * (width // (2 * OUTPUTS)),),
        *(h, tiles.order, tiles.expert, tiles.first, tiles.last, down.words, down.scales, out),
        *(num_experts, width, h.shape[1]),
        num_warps=8,
        **constants,
    )
    return out
