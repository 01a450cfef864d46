"""Chains: short fixed sequences of ops that a kernel set may run as one call.

Each is defined here by the ops it stands for, and that is all a kernel set has to do: ``Chains`` gives it the
methods. A set that fuses them overrides a method and owes the same bits as the sequence; a tracer that wants
to see the ops inside calls the functions here instead (``tests/kernels/test_chains.py`` compares the two).

Legend: T rows, S residual streams, D model width, Q query latent, H heads, C latent width, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from deepinfer.kernels.attention_operands import AttentionLayer, Seen, SeenRecords
from deepinfer.kernels.draft_chains import (
    draft_block,
    draft_contexts,
    draft_decode,
    draft_rows,
    keep_contexts,
    markov_decode,
    window_layers,
)
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import LowRank, MoeWeights, PackedWeight, Rotary, SiteInput, SiteWeights

T = TypeVar("T")


def beside(ops: Ops, work: Callable[[], T], num_rows: int) -> Callable[[], T]:
    """The result of ``work`` for later; here it is done at once."""
    result = work()
    return lambda: result


def site_input(ops: Ops, streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights) -> SiteInput:
    """Mixes of a site from ``streams`` [T, S, D]; collapse with the previous site's ``pre`` [T, S]; norm."""
    mixes = ops.hc_mix(streams, site.fn, site.base, site.scale, site.iterations, site.hc_eps, site.rms_eps)
    return SiteInput(ops.rms_norm(ops.hc_collapse(streams, pre), site.gain, site.rms_eps), lambda: mixes)


def first_streams(
    ops: Ops, embedding: torch.Tensor, ids: torch.Tensor, num_streams: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every stream starts as the embedding of its row; the first collapse reads stream 0."""
    embedded = embedding[ids]
    pre = embedded.new_zeros(embedded.shape[0], num_streams)
    pre[:, 0] = 1.0
    return embedded[:, None].repeat(1, num_streams, 1), pre


def pool_waiting(
    ops: Ops,
    values: torch.Tensor,
    scores: torch.Tensor,
    kept_values: torch.Tensor,
    kept_scores: torch.Tensor,
    pairs: torch.Tensor,
    places: torch.Tensor,
    halves: torch.Tensor,
) -> torch.Tensor:
    """``pool_pairs`` of rows and of halves kept from earlier steps; keeps those that wait now."""
    pooled = ops.pool_pairs(torch.cat([values, kept_values])[pairs], torch.cat([scores, kept_scores])[pairs])
    kept_values[places], kept_scores[places] = values[halves], scores[halves]
    return pooled


def next_site(
    ops: Ops, streams: torch.Tensor, added: torch.Tensor, site: SiteInput, following: SiteWeights
) -> tuple[torch.Tensor, SiteInput]:
    """Streams behind a sublayer that gives ``added`` [T, D], and the input of the site behind them."""
    expanded = ops.hc_expand(streams, added, site.post, site.comb)
    return expanded, ops.site_input(expanded, site.pre, following)


def moe_expand(ops: Ops, streams: torch.Tensor, site: SiteInput, weights: MoeWeights) -> torch.Tensor:
    """Streams [T, S, D] behind the experts of a site."""
    return ops.hc_expand(streams, ops.routed_moe(site.x, weights)[0], site.post, site.comb)


def moe_next_site(
    ops: Ops, streams: torch.Tensor, site: SiteInput, weights: MoeWeights, following: SiteWeights
) -> tuple[torch.Tensor, SiteInput]:
    """``moe_expand``, and the input of the site behind it."""
    expanded = ops.moe_expand(streams, site, weights)
    return expanded, ops.site_input(expanded, site.pre, following)


def collapsed_norm(
    ops: Ops, streams: torch.Tensor, pre: torch.Tensor, gain: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, S, D], [T, S] -> streams collapsed [T, D], and their norm [T, D]."""
    hidden = ops.hc_collapse(streams, pre)
    return hidden, ops.rms_norm(hidden, gain, eps)


def low_rank_query(
    ops: Ops, x: torch.Tensor, weights: LowRank, num_heads: int, rotary: Rotary
) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, D] -> latent [T, Q] and rotated queries [T, H, C] (section 3.1)."""
    latent = ops.rms_norm(ops.linear(x, weights.down), weights.gain, weights.eps)
    q = ops.linear(latent, weights.up).view(x.shape[0], num_heads, -1)
    return latent, ops.rotate_(q, rotary.cos, rotary.sin, rotary.positions)


def rotated_latent(
    ops: Ops, x: torch.Tensor, weight: PackedWeight, gain: torch.Tensor, eps: float, rotary: Rotary
) -> torch.Tensor:
    """[T, D] -> [T, C]: linear, norm, rotation; window latents and index keys (sections 3.2 and 4.1)."""
    latent = ops.rms_norm(ops.linear(x, weight), gain, eps)
    return ops.rotate_(latent[:, None], rotary.cos, rotary.sin, rotary.positions)[:, 0]


def window_latent(
    ops: Ops, x: torch.Tensor, weight: PackedWeight, gain: torch.Tensor, eps: float, rotary: Rotary
) -> torch.Tensor:
    """[T, D] -> [T, C]: a rotated latent as its cache record gives it back (section 3.2)."""
    return ops.mxfp8_(ops.rotated_latent(x, weight, gain, eps, rotary))


def attention_output(
    ops: Ops, mixed: torch.Tensor, rotary: Rotary, wo_a: PackedWeight, wo_b: PackedWeight
) -> torch.Tensor:
    """[T, H, C] -> [T, D]; the inverse rotation makes the values' positions relative (section 3.7)."""
    turned = ops.rotate_(mixed.clone(), rotary.cos, rotary.sin, rotary.positions, inverse=True)
    return ops.linear(ops.linear(turned.flatten(1), wo_a), wo_b)


def attention(
    ops: Ops,
    x: torch.Tensor,
    layer: AttentionLayer,
    rotary: Rotary,
    seen: Callable[[torch.Tensor], Seen],
) -> torch.Tensor:
    """[T, D] -> [T, D], an attention sublayer (section 3); ``seen`` is asked once, behind the queries.

    Args:
        x: its input.
        layer: its weights.
        rotary: turns queries, and what they find the other way.
        seen: what the queries attend to, given their latent [T, Q].
    """
    latent, q = ops.low_rank_query(x, layer.query, layer.num_heads, rotary)
    rows = seen(latent)
    if isinstance(rows, SeenRecords):
        given = (rows.window, rows.window_slots, rows.pages, rows.entries)
        mixed = ops.attend_records(q, *given, layer.sink)
    else:
        mixed = ops.sparse_attention(
            q, rows.window, rows.window_slots, rows.main, rows.main_slots, layer.sink
        )
    return ops.attention_output(mixed, rotary, layer.wo_a, layer.wo_b)


def routed_moe(
    ops: Ops, x: torch.Tensor, weights: MoeWeights
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[T, D] -> [T, D], with the chosen experts int64 [T, k] and their weights float32 [T, k]."""
    logits = ops.linear_fp32(x, weights.gate)
    ids, shares = ops.route(logits, weights.bias, weights.num_selected, weights.normalise, weights.factor)
    return ops.moe(x, ids, shares, weights.experts, weights.shared, weights.limit), ids, shares


class SiteChains:
    """Gives a kernel set the chains from sublayer to sublayer, each as the sequence of its own ops."""

    first_streams = first_streams
    pool_waiting = pool_waiting
    next_site = next_site
    moe_expand = moe_expand
    moe_next_site = moe_next_site
    collapsed_norm = collapsed_norm


class Chains(SiteChains):
    """Gives a kernel set all chains, each as the sequence of its own ops."""

    beside = beside
    site_input = site_input
    low_rank_query = low_rank_query
    rotated_latent = rotated_latent
    window_latent = window_latent
    attention_output = attention_output
    attention = attention
    routed_moe = routed_moe
    markov_decode = markov_decode
    draft_rows = draft_rows
    window_layers = window_layers
    draft_decode = draft_decode
    draft_block = draft_block
    draft_contexts = draft_contexts
    keep_contexts = keep_contexts
