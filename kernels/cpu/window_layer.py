"""A layer that only has a window, in one call of compiled code: a stage of drafting.

Nothing here computes. The kernels of the ops are called one after the other, as in ``chains``, but from
compiled code: a stage is thirty calls on a few rows, and reaching one from Python costs as much as it does.

Legend: T rows of the call, n rows of one part of it, S streams, D model width.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.attention import attention_kernel
from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.expert_products import Place as ExpertPlace
from deepinfer.kernels.cpu.experts import combine_kernel, experts_kernel, sort_pairs_kernel
from deepinfer.kernels.cpu.fake_quant import MXFP8, round_trip_kernel
from deepinfer.kernels.cpu.fma_tile import PANEL
from deepinfer.kernels.cpu.hyper import collapse_kernel, expand_kernel, mix_kernel
from deepinfer.kernels.cpu.linear import PackedLinear, Place, linear_kernel
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.packed_experts import PackedExperts
from deepinfer.kernels.cpu.rope import rotate_kernel
from deepinfer.kernels.cpu.router import route_kernel
from deepinfer.kernels.draft_operands import WindowLayer
from deepinfer.kernels.operands import MoeWeights, SiteWeights

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Dense = tuple[Place, int]
"""``PackedLinear.place`` and the outputs of all its groups together."""
Site = tuple[Dense, Float32, Float32, Float32, int, np.float32, np.float32]
"""fn, base, scale, gain, iterations, hc_eps, rms_eps of a ``SiteWeights``."""
Attention = tuple[Dense, Float32, Dense, Dense, Float32, Dense, Dense, Float32, np.float32]
"""Query down, its norm, query up; latent, its norm; both output matrices; sink; eps of the norms."""
Latent = tuple[Dense, Float32, np.float32]
"""Of these the latent, its norm and eps."""
Stacks = tuple[ExpertPlace, ...]
Moe = tuple[Dense, Float32, int, bool, np.float32, np.float32, Stacks, Stacks]
"""Gate, bias, k, normalise, factor, limit, matrices of the experts and of the shared one."""
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


@kernel
def window_layer_kernel(
    streams: Float32,
    pre: Float32,
    attn_site: Site,
    attention: Attention,
    num_heads: int,
    ffn_site: Site,
    moe: Moe,
    table: Table,
    context: Float32,
    places: Int64,
    own: Int64,
    rounds: bool,
    bf16: bool,
    out: Float32,
    next_pre: Float32,
    low: int,
    high: int,
) -> None:
    """Rows ``low .. high`` of the layer, whole blocks and at most ROWS_PER_TASK; see ``draft_chains``."""
    cos, sin, positions = table
    num_rows, x = high - low, streams[low:high]
    here = (cos, sin, positions[low:high])
    between, post, comb, normed = _site(x, pre[low:high], attn_site, bf16)
    _, _, _, latent, gain, _, _, _, eps = attention
    latents = _latents(normed, (latent, gain, eps), here, rounds, bf16)
    seen, mine = places[low:high], own[low:high] - low
    added = _attend(normed, latents, attention, num_heads, here, context, seen, mine, bf16)
    middle = np.empty_like(x)
    expand_kernel(x, added, post, comb, middle, bf16, 0, num_rows)
    following, post, mixing, normed = _site(middle, between, ffn_site, bf16)
    expand_kernel(middle, _moe(normed, moe, bf16), post, mixing, out[low:high], bf16, 0, num_rows)
    next_pre[low:high] = following


@kernel
def contexts_kernel(
    features: Float32,
    projection: Place,
    gain: Float32,
    eps: np.float32,
    layers: tuple[Latent, ...],
    table: Table,
    rounds: bool,
    bf16: bool,
    out: Float32,
    low: int,
    high: int,
) -> None:
    """Latents [L, T, C] of ``features`` [T, F] for L layers, rows ``low .. high``."""
    cos, sin, positions = table
    here, num_rows = (cos, sin, positions[low:high]), high - low
    raw = np.empty((num_rows, gain.shape[0]), np.float32)
    context = np.empty_like(raw)
    linear_kernel(features[low:high], projection, raw, gain.shape[0], bf16, 0, num_rows)
    rms_norm_kernel(raw, gain, eps, context, bf16, 0, num_rows)
    for number in range(len(layers)):
        out[number, low:high] = _latents(context, layers[number], here, rounds, bf16)


Layer = tuple[Site, Attention, int, Site, Moe]
"""What the kernel wants to know of a layer."""


def latent_of(layer: Layer) -> Latent:
    """The part of a layer that shows rows."""
    _, (_, _, _, latent, gain, _, _, _, eps), *_ = layer
    return latent, gain, eps


class BoundLayers:
    """Remembers how the kernel sees each layer, for as long as the layer lives."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._bound: WeakKeyDictionary[WindowLayer, Layer] = WeakKeyDictionary()

    def __getitem__(self, layer: WindowLayer) -> Layer:
        """``layer`` as the kernel sees it."""
        found = self._bound.get(layer)
        if found is None:
            sites = _site_of(layer.attn_site), _site_of(layer.ffn_site)
            found = sites[0], _attention_of(layer), layer.num_heads, sites[1], _moe_of(layer.moe)
            self._bound[layer] = found
        return found


def _dense_of(weight: PackedLinear) -> Dense:
    return weight.place, weight.panels.shape[0] * weight.num_outputs


def _site_of(site: SiteWeights) -> Site:
    base, scale, gain = site.base.numpy(), site.scale.numpy(), site.gain.numpy()
    return (
        _dense_of(site.fn), base, scale, gain, site.iterations,
        np.float32(site.hc_eps), np.float32(site.rms_eps),
    )  # fmt: skip


def _attention_of(weights: WindowLayer) -> Attention:
    query = weights.query
    if query.eps != weights.eps:
        raise ValueError("window_layer: queries and latents are normed with the same eps")
    return (
        _dense_of(query.down), query.gain.numpy(), _dense_of(query.up),
        _dense_of(weights.latent), weights.latent_gain.numpy(),
        _dense_of(weights.wo_a), _dense_of(weights.wo_b),
        weights.sink.numpy(), np.float32(weights.eps),
    )  # fmt: skip


def _moe_of(moe: MoeWeights) -> Moe:
    experts, shared = (_places(packed) for packed in (moe.experts, moe.shared))
    factor, limit = np.float32(moe.factor), np.float32(moe.limit)
    return (
        _dense_of(moe.gate), moe.bias.numpy(), moe.num_selected, moe.normalise, factor, limit, experts, shared
    )  # fmt: skip


def _places(packed: PackedExperts) -> Stacks:
    return packed.gate.place, packed.up.place, packed.down.place
