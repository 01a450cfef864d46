"""A layer that only has a window, as compiled code: a stage of drafting.

Nothing here computes. The kernels of the ops are called one after the other, as in ``chains``, but from
compiled code: a stage is thirty calls on a few rows, and reaching one from Python costs as much as it does.

Legend: T rows of the call, n rows of one part of it, S streams, D model width.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.attention import attention_kernel
from deepinfer.kernels.cpu.bound_layer import (
    Attention,
    Dense,
    Latent,
    Moe,
    Site,
    Stacks,
    latent_at,
    layer_at,
)
from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.experts import combine_kernel, experts_kernel, sort_pairs_kernel
from deepinfer.kernels.cpu.fake_quant import MXFP8, round_trip_kernel
from deepinfer.kernels.cpu.fma_tile import PANEL
from deepinfer.kernels.cpu.hyper import collapse_kernel, expand_kernel, mix_kernel
from deepinfer.kernels.cpu.linear import Place, linear_kernel
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.rope import rotate_kernel
from deepinfer.kernels.cpu.router import route_kernel

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Table = tuple[Float32, Float32, Int64]
"""Cosines, sines, positions of the rows."""
_MXFP8_GROUP = 32


@inlined
def _dense(x: Float32, weight: Dense, bf16: bool) -> Float32:
    place, num_outputs = weight
    out = np.empty((x.shape[0], num_outputs), np.float32)
    linear_kernel(x, place, out, num_outputs // place[2], bf16, 0, x.shape[0])
    return out


@inlined
def _normed(x: Float32, gain: Float32, eps: np.float32, bf16: bool) -> Float32:
    out = np.empty_like(x)
    rms_norm_kernel(x, gain, eps, out, bf16, 0, x.shape[0])
    return out


@inlined
def _site(
    streams: Float32, pre: Float32, site: Site, bf16: bool
) -> tuple[Float32, Float32, Float32, Float32]:
    """``chains.site_input`` of [n, S, D]: next pre, post, comb and the input of the sublayer."""
    fn, base, scale, gain, iterations, hc_eps, rms_eps = site
    num_rows, num_streams, width = streams.shape
    flat = streams.reshape(num_rows, num_streams * width)
    products = _dense(flat, fn, False)
    next_pre, post = np.empty_like(pre), np.empty_like(pre)
    comb = np.empty((num_rows, num_streams, num_streams), np.float32)
    mix_kernel(flat, products, base, scale, iterations, hc_eps, rms_eps, next_pre, post, comb, 0, num_rows)
    collapsed = np.empty((num_rows, width), np.float32)
    collapse_kernel(streams, pre, collapsed, bf16, 0, num_rows)
    return next_pre, post, comb, _normed(collapsed, gain, rms_eps, bf16)


@inlined
def _latents(x: Float32, weights: Latent, table: Table, rounds: bool, bf16: bool) -> Float32:
    """What rows [n, D] show to queries: [n, C]."""
    latent, gain, eps = weights
    cos, sin, positions = table
    num_rows = x.shape[0]
    latents = _normed(_dense(x, latent, bf16), gain, eps, bf16)
    one_head = latents.reshape(num_rows, 1, latents.shape[1])
    rotate_kernel(one_head, cos, sin, positions, np.float32(1.0), bf16, 0, num_rows)
    if rounds:
        round_trip_kernel(latents, MXFP8, _MXFP8_GROUP, 0, num_rows)
    return latents


@inlined
def _attend(
    x: Float32,
    latents: Float32,
    weights: Attention,
    num_heads: int,
    table: Table,
    context: Float32,
    places: Int64,
    own: Int64,
    bf16: bool,
) -> Float32:
    """Attention sublayer of [n, D]; ``own`` says which of ``latents`` a row sees."""
    down, query_gain, up, _, _, wo_a, wo_b, sink, eps = weights
    cos, sin, positions = table
    num_rows = x.shape[0]
    flat = _dense(_normed(_dense(x, down, bf16), query_gain, eps, bf16), up, bf16)
    width = flat.shape[1] // num_heads
    q = flat.reshape(num_rows, num_heads, width)
    rotate_kernel(q, cos, sin, positions, np.float32(1.0), bf16, 0, num_rows)
    mixed = np.empty_like(q)
    scale = np.float32(width**-0.5)
    attention_kernel(q, context, places, latents, own, sink, scale, bf16, mixed, 0, num_rows)
    rotate_kernel(mixed, cos, sin, positions, np.float32(-1.0), bf16, 0, num_rows)
    return _dense(_dense(mixed.reshape(num_rows, num_heads * width), wo_a, bf16), wo_b, bf16)


@inlined
def _run_experts(
    x: Float32, pairs: Int64, shares: Float32, counts: Int64, experts: Stacks, limit: np.float32, bf16: bool,
) -> Float32:  # fmt: skip
    """Outputs [pairs, panels * PANEL] of sorted pairs; one task per expert that has any."""
    gate, up, down = experts
    chosen = np.flatnonzero(counts)
    starts = np.zeros(len(chosen) + 1, np.int64)
    for i in range(len(chosen)):
        starts[i + 1] = starts[i] + counts[chosen[i]]
    out = np.empty((len(pairs), down[2] * PANEL), np.float32)
    experts_kernel(x, pairs, shares, chosen, starts, gate, up, down, limit, bf16, out, 0, len(chosen))
    return out


@inlined
def _moe(x: Float32, weights: Moe, bf16: bool) -> Float32:
    """``chains.routed_moe`` of [n, D]."""
    gate, bias, num_selected, normalise, factor, limit, experts, shared = weights
    num_rows = x.shape[0]
    logits = _dense(x, gate, False)
    ids = np.empty((num_rows, num_selected), np.int64)
    shares = np.empty((num_rows, num_selected), np.float32)
    route_kernel(logits, bias, normalise, factor, ids, shares, 0, num_rows)
    pairs, place = np.empty(ids.size, np.int64), np.empty_like(ids)
    pair_shares, counts = np.empty(ids.size, np.float32), np.zeros(gate[1], np.int64)
    sort_pairs_kernel(ids, shares, pairs, pair_shares, place, counts)
    routed = _run_experts(x, pairs, pair_shares, counts, experts, limit, bf16)
    everyone, ones = np.arange(num_rows), np.ones(num_rows, np.float32)
    common = _run_experts(x, everyone, ones, np.full(1, num_rows), shared, limit, bf16)
    out = np.empty_like(x)
    combine_kernel(routed, place, common, out, bf16, 0, num_rows)
    return out


@inlined
def window_layer(
    streams: Float32,
    pre: Float32,
    line: Int64,
    table: Table,
    context: Float32,
    places: Int64,
    own: Int64,
    rounds: bool,
    bf16: bool,
    out: Float32,
    next_pre: Float32,
) -> None:
    """Rows [n, S, D] through the layer behind ``line``; see ``kernels.draft_chains.window_layers``.

    They are whole blocks, at most ROWS_PER_TASK rows, and ``own`` counts from the first of them.
    """
    attn_site, attention, num_heads, ffn_site, moe = layer_at(line)
    num_rows = streams.shape[0]
    between, post, comb, normed = _site(streams, pre, attn_site, bf16)
    latents = _latents(normed, latent_at(line), table, rounds, bf16)
    added = _attend(normed, latents, attention, num_heads, table, context, places, own, bf16)
    middle = np.empty_like(streams)
    expand_kernel(streams, added, post, comb, middle, bf16, 0, num_rows)
    following, post, mixing, normed = _site(middle, between, ffn_site, bf16)
    expand_kernel(middle, _moe(normed, moe, bf16), post, mixing, out, bf16, 0, num_rows)
    next_pre[:] = following


@kernel
def contexts_kernel(
    features: Float32,
    projection: Place,
    gain: Float32,
    eps: np.float32,
    layers: Int64,
    table: Table,
    rounds: bool,
    bf16: bool,
    out: Float32,
    low: int,
    high: int,
) -> None:
    """Latents [L, T, C] of ``features`` [T, F] for a table of L layers, rows ``low .. high``."""
    cos, sin, positions = table
    here, num_rows = (cos, sin, positions[low:high]), high - low
    raw = np.empty((num_rows, gain.shape[0]), np.float32)
    context = np.empty_like(raw)
    linear_kernel(features[low:high], projection, raw, gain.shape[0], bf16, 0, num_rows)
    rms_norm_kernel(raw, gain, eps, context, bf16, 0, num_rows)
    for number in range(len(layers)):
        out[number, low:high] = _latents(context, latent_at(layers[number]), here, rounds, bf16)
