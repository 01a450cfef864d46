"""The chains of drafting (model.md section 7), defined by the ops they stand for; continues ``chains``.

Legend: A blocks of B rows, T = A * B, S residual streams, D model width, C latent width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from deepinfer.kernels.attention_operands import SeenRows
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, DraftRows, WindowLayer
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords, PackedWeight, Rotary, SiteInput

CONFIDENCE_CLAMP = 60.0


def draft_rows(
    ops: Ops,
    golden: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    low: torch.Tensor,
    embedding: torch.Tensor,
    shape: BlockShape,
    ring: int,
) -> DraftRows:
    """Rows of the blocks that begin with tokens ``golden`` int64 [A] at ``positions`` int64 [A].

    Args:
        slots: int64 [A], whose rings hold the contexts.
        low: int64 [A], first position whose context is there.
        embedding: float32 [V, D].
        shape: of a block.
        ring: positions that a ring remembers.
    """
    size, window, device = shape.size, shape.window, golden.device
    ids = golden.new_full((len(golden), size), shape.noise_token_id)
    ids[:, 0] = golden
    seen = positions[:, None] + torch.arange(-window, 0, device=device)
    visible = seen >= low[:, None]
    numbers = torch.arange(seen.numel(), device=device).view(seen.shape)
    own = torch.arange(ids.numel(), device=device).view(ids.shape)
    streams = embedding[ids.flatten()][:, None].repeat(1, shape.num_streams, 1)
    pre = streams.new_zeros(streams.shape[:2])
    pre[:, 0] = 1.0  # the first collapse reads stream 0
    return DraftRows(
        streams=streams,
        pre=pre,
        positions=(positions[:, None] + torch.arange(size, device=device)).flatten(),
        records=torch.where(visible, slots[:, None] * ring + seen % ring, -1).flatten(),
        places=torch.where(visible, numbers, -1).repeat_interleave(size, 0),
        own=own.repeat_interleave(size, 0),
    )


def window_layers(
    ops: Ops,
    streams: torch.Tensor,
    pre: torch.Tensor,
    layers: Sequence[WindowLayer],
    rotary: Rotary,
    pools: Sequence[BoundRecords],
    records: torch.Tensor,
    places: torch.Tensor,
    own: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Layers on blocks whose rows see context and each other (section 7.2).

    Args:
        streams, pre: float32 [T, S, D] and [T, S].
        layers: one after the other.
        pools: where each keeps its context.
        records: int64 [P], the records of them that are read, -1 for none.
        places: int64 [T, W], which of those a query sees, -1 for none.
        own: int64 [T, B], the rows of the query's own block.

    Returns:
        Streams [T, S, D] and ``pre`` [T, S] behind the last one.
    """
    contexts = ops.beside(lambda: [ops.load_records(pool, records) for pool in pools], len(streams))
    site = ops.site_input(streams, pre, layers[0].attn_site)
    for number, layer in enumerate(layers):
        context = partial(_one_of, contexts, number)
        streams, site = _window_attention(ops, streams, site, layer, rotary, context, places, own)
        if number + 1 == len(layers):
            break
        streams, site = ops.moe_next_site(streams, site, layer.moe, layers[number + 1].attn_site)
    return ops.moe_expand(streams, site, layers[-1].moe), site.pre


def _one_of(contexts: Callable[[], Sequence[torch.Tensor]], number: int) -> torch.Tensor:
    return contexts()[number]


def _window_attention(
    ops: Ops,
    streams: torch.Tensor,
    site: SiteInput,
    weights: WindowLayer,
    rotary: Rotary,
    context: Callable[[], torch.Tensor],
    places: torch.Tensor,
    own: torch.Tensor,
) -> tuple[torch.Tensor, SiteInput]:
    """Attention of one of ``window_layers``, up to its experts; ``context`` waits for what it sees, float32
    [P, C].
    """
    given = (weights.latent, weights.latent_gain, weights.eps, rotary)
    latents = ops.beside(partial(ops.window_latent, site.x, *given), len(streams))

    def seen(_: torch.Tensor) -> SeenRows:
        return SeenRows(context(), places, latents(), own)

    added = ops.attention(site.x, weights, rotary, seen)
    return ops.next_site(streams, added, site, weights.ffn_site)


def draft_contexts(
    ops: Ops,
    features: torch.Tensor,
    projection: PackedWeight,
    gain: torch.Tensor,
    eps: float,
    layers: Sequence[WindowLayer],
    rotary: Rotary,
) -> tuple[torch.Tensor, ...]:
    """Context latents [T, C] for every layer from ``features`` [T, F] of computed rows (section 7.1)."""
    context = ops.rms_norm(ops.linear(features, projection), gain, eps)
    given = ((context, layer.latent, layer.latent_gain, layer.eps, rotary) for layer in layers)
    running = [ops.beside(partial(ops.window_latent, *one), len(features)) for one in given]
    return tuple(latents() for latents in running)


def keep_contexts(
    ops: Ops,
    features: torch.Tensor,
    projection: PackedWeight,
    gain: torch.Tensor,
    eps: float,
    layers: Sequence[WindowLayer],
    rotary: Rotary,
    pools: Sequence[BoundRecords],
    records: torch.Tensor,
) -> None:
    """``draft_contexts``, each stored in its pool as records int64 [T], -1 for a row that nobody will see."""
    latents = ops.draft_contexts(features, projection, gain, eps, layers, rotary)
    for pool, mine in zip(pools, latents, strict=True):
        ops.store_records(pool, mine, records)


def draft_decode(
    ops: Ops,
    streams: torch.Tensor,
    pre: torch.Tensor,
    golden: torch.Tensor,
    head: DraftHead,
) -> DraftOutput:
    """Tokens and confidences of blocks behind the last stage, one for every row.

    Args:
        streams, pre: float32 [A * n, S, D] and [A * n, S].
        golden: int64 [A], the token before each block.
        head: weights.
    """
    num_blocks = golden.shape[0]
    num_drafts = len(streams) // num_blocks
    hidden, normed = ops.collapsed_norm(streams, pre, head.gain, head.eps)
    base = ops.linear_fp32(normed, head.head)
    base = base.view(num_blocks, num_drafts, -1)
    tokens, logits, scores = ops.markov_decode(
        golden, hidden.view(num_blocks, num_drafts, -1), base, head.embed, head.markov, head.confidence
    )
    return DraftOutput(hidden, base, tokens, logits, scores, ops.sigmoid(scores))


def draft_block(
    ops: Ops,
    golden: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    low: torch.Tensor,
    embedding: torch.Tensor,
    shape: BlockShape,
    ring: int,
    rotary: Rotary,
    layers: Sequence[WindowLayer],
    pools: Sequence[BoundRecords],
    head: DraftHead,
) -> Callable[[], DraftOutput]:
    """Drafts of all blocks, from their anchors to their tokens; arguments as in the chains it runs.

    What comes back gives them: they may be made while the host does other work. Until then nobody may change
    the pools. ``rotary`` is asked for its table alone: the positions are those of the rows.
    """
    rows = ops.draft_rows(golden, positions, slots, low, embedding, shape, ring)
    here = Rotary(rotary.cos, rotary.sin, rows.positions)
    streams, pre = ops.window_layers(
        rows.streams, rows.pre, layers, here, pools, rows.records, rows.places, rows.own
    )
    drafted = ops.draft_decode(streams, pre, golden, head)
    return lambda: drafted


def markov_decode(
    ops: Ops,
    golden: torch.Tensor,
    states: torch.Tensor,
    base_logits: torch.Tensor,
    embed: torch.Tensor,
    head: PackedWeight,
    confidence: PackedWeight,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sequential part of drafting: each token conditions the next one (sections 7.3 and 7.4).

    Args:
        golden: int64 [A], the token before each block.
        states: float32 [A, B, D].
        base_logits: float32 [A, B, V].
        embed: float32 [V, R], the Markov embedding.
        head, confidence: R -> V and D + R -> 1.

    Returns:
        int64 [A, 1 + B], golden token first, ties to the lowest id; float32 [A, B, V] with the Markov term;
        float32 [A, B], confidences before the sigmoid.
    """
    tokens, logits, scores = [golden], [], []
    for i in range(base_logits.shape[1]):
        embedded = embed[tokens[-1]]
        row = ops.add_fp32(base_logits[:, i].contiguous(), ops.linear_fp32(embedded, head))
        score = ops.linear_fp32(torch.cat([states[:, i], embedded], 1), confidence)[:, 0]
        tokens.append(row.argmax(1))
        logits.append(row)
        scores.append(score.clamp(-CONFIDENCE_CLAMP, CONFIDENCE_CLAMP))
    return torch.stack(tokens, 1), torch.stack(logits, 1), torch.stack(scores, 1)
