"""Chains of ops in one call: a block of rows passes through all of them before the next block begins.

Nothing here computes. The kernels of the ops are called one after the other on arrays that stay numpy, which
spares two conversions and one hand-over of threads per op, and keeps a block in the second-level cache. The
bits are those of the ops one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.experts import run_moe
from deepinfer.kernels.cpu.hyper import collapse_kernel, mix_kernel
from deepinfer.kernels.cpu.linear import PackedLinear, linear_kernel
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.rope import rotate_kernel
from deepinfer.kernels.cpu.router import route_kernel
from deepinfer.kernels.cpu.sinkhorn import LANES, refuse_other_streams
from deepinfer.kernels.cpu.workers import Workers
from deepinfer.kernels.operands import LowRank, MoeWeights, Rotary, SiteInput, SiteWeights

Float32 = npt.NDArray[np.float32]
BLOCK_ROWS = 12 * LANES
"""Rows of a block, a multiple of what every kernel handles side by side; no effect on bits."""


def _in_blocks(num_rows: int, body: Callable[[int, int], None], item_cost: int, workers: Workers) -> None:
    """Run ``body`` on blocks of rows, on as many threads as the work is worth."""

    def part(low: int, high: int) -> None:
        for first in range(low, high, BLOCK_ROWS):
            body(first, min(first + BLOCK_ROWS, high))

    workers.run(num_rows, LANES, part, item_cost=item_cost)


def _rows(x: torch.Tensor, width: int) -> Float32:
    """``x`` as numpy [T, width]."""
    rows: Float32 = x.contiguous().numpy().reshape(x.shape[0], -1)
    if rows.shape[1] != width:
        raise ValueError(f"rows are {list(x.shape)}, the weight takes [T, {width}]")
    return rows


def _linear(x: Float32, weight: PackedLinear, out: Float32, bf16: bool, low: int, high: int) -> None:
    linear_kernel(x, weight.place, out, weight.num_outputs, bf16, low, high)


def site_input(
    streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights, bf16: bool, workers: Workers
) -> SiteInput:
    """See ``Ops.site_input``."""
    num_rows, num_streams, width = streams.shape
    refuse_other_streams(num_streams)
    fn: PackedLinear = site.fn
    flat = _rows(streams, fn.num_inputs)
    source, factors = flat.reshape(num_rows, num_streams, width), pre.contiguous().numpy()
    base, scale, gain = site.base.numpy(), site.scale.numpy(), site.gain.numpy()
    hc_eps, rms_eps = np.float32(site.hc_eps), np.float32(site.rms_eps)
    products = np.empty((num_rows, fn.num_outputs), np.float32)
    next_pre = np.empty((num_rows, num_streams), np.float32)
    post = np.empty((num_rows, num_streams), np.float32)
    comb = np.empty((num_rows, num_streams, num_streams), np.float32)
    collapsed = np.empty((num_rows, width), np.float32)
    x = np.empty((num_rows, width), np.float32)

    def block(low: int, high: int) -> None:
        _linear(flat, fn, products, False, low, high)
        mix_kernel(
            flat, products, base, scale, site.iterations, hc_eps, rms_eps, next_pre, post, comb, low, high
        )
        collapse_kernel(source, factors, collapsed, bf16, low, high)
        rms_norm_kernel(collapsed, gain, rms_eps, x, bf16, low, high)

    _in_blocks(num_rows, block, fn.panels.size + 60_000, workers)
    mixes = torch.from_numpy(next_pre), torch.from_numpy(post), torch.from_numpy(comb)
    return SiteInput(torch.from_numpy(x), lambda: mixes)


def low_rank_query(
    x: torch.Tensor, weights: LowRank, num_heads: int, rotary: Rotary, bf16: bool, workers: Workers
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.low_rank_query``."""
    down: PackedLinear = weights.down
    up: PackedLinear = weights.up
    rows, num_rows = _rows(x, down.num_inputs), x.shape[0]
    gain, eps = weights.gain.numpy(), np.float32(weights.eps)
    cos, sin, positions = rotary.cos.numpy(), rotary.sin.numpy(), rotary.positions.numpy()
    raw = np.empty((num_rows, down.num_outputs), np.float32)
    latent = np.empty_like(raw)
    flat = np.empty((num_rows, up.num_outputs), np.float32)
    q = flat.reshape(num_rows, num_heads, -1)
    sign = np.float32(1.0)

    def block(low: int, high: int) -> None:
        _linear(rows, down, raw, bf16, low, high)
        rms_norm_kernel(raw, gain, eps, latent, bf16, low, high)
        _linear(latent, up, flat, bf16, low, high)
        rotate_kernel(q, cos, sin, positions, sign, bf16, low, high)

    _in_blocks(num_rows, block, down.panels.size + up.panels.size, workers)
    return torch.from_numpy(latent), torch.from_numpy(q)


def rotated_latent(
    x: torch.Tensor,
    weight: PackedLinear,
    gain: torch.Tensor,
    eps: float,
    rotary: Rotary,
    bf16: bool,
    workers: Workers,
) -> torch.Tensor:
    """See ``Ops.rotated_latent``."""
    rows, num_rows, gains, floor = _rows(x, weight.num_inputs), x.shape[0], gain.numpy(), np.float32(eps)
    cos, sin, positions = rotary.cos.numpy(), rotary.sin.numpy(), rotary.positions.numpy()
    raw = np.empty((num_rows, weight.num_outputs), np.float32)
    latent = np.empty_like(raw)
    one_head, sign = latent[:, None], np.float32(1.0)

    def block(low: int, high: int) -> None:
        _linear(rows, weight, raw, bf16, low, high)
        rms_norm_kernel(raw, gains, floor, latent, bf16, low, high)
        rotate_kernel(one_head, cos, sin, positions, sign, bf16, low, high)

    _in_blocks(num_rows, block, weight.panels.size, workers)
    return torch.from_numpy(latent)


def attention_output(
    mixed: torch.Tensor,
    rotary: Rotary,
    wo_a: PackedLinear,
    wo_b: PackedLinear,
    bf16: bool,
    workers: Workers,
) -> torch.Tensor:
    """See ``Ops.attention_output``."""
    num_rows, num_heads, _ = mixed.shape
    turned = _rows(mixed, wo_a.panels.shape[0] * wo_a.num_inputs).copy()
    heads = turned.reshape(num_rows, num_heads, -1)
    cos, sin, positions = rotary.cos.numpy(), rotary.sin.numpy(), rotary.positions.numpy()
    inner = np.empty((num_rows, wo_a.panels.shape[0] * wo_a.num_outputs), np.float32)
    out = np.empty((num_rows, wo_b.num_outputs), np.float32)
    sign = np.float32(-1.0)

    def block(low: int, high: int) -> None:
        rotate_kernel(heads, cos, sin, positions, sign, bf16, low, high)
        _linear(turned, wo_a, inner, bf16, low, high)
        _linear(inner, wo_b, out, bf16, low, high)

    _in_blocks(num_rows, block, wo_a.panels.size + wo_b.panels.size, workers)
    return torch.from_numpy(out)


def routed_moe(
    x: torch.Tensor, weights: MoeWeights, bf16: bool, workers: Workers
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``Ops.routed_moe``."""
    gate: PackedLinear = weights.gate
    rows, num_rows, bias = _rows(x, gate.num_inputs), x.shape[0], weights.bias.numpy()
    factor = np.float32(weights.factor)
    logits = np.empty((num_rows, gate.num_outputs), np.float32)
    ids = np.empty((num_rows, weights.num_selected), np.int64)
    shares = np.empty((num_rows, weights.num_selected), np.float32)

    def block(low: int, high: int) -> None:
        _linear(rows, gate, logits, False, low, high)
        route_kernel(logits, bias, weights.normalise, factor, ids, shares, low, high)

    _in_blocks(num_rows, block, gate.panels.size, workers)
    out = run_moe(rows, ids, shares, weights.experts, weights.shared, weights.limit, bf16, workers)
    return torch.from_numpy(out), torch.from_numpy(ids), torch.from_numpy(shares)
