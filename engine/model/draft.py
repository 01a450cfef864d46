"""DSpark: three small layers draft a block of tokens from features of the last backbone layers.

model.md section 7.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch

from deepinfer.engine.batch import Rows
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.record_pool import RecordPool
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model.attention import AttentionWeights
from deepinfer.engine.model.hyper import HyperSite, Streams, initial_streams
from deepinfer.engine.model.moe import MoeLayer
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.engine.transfer import Movable
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import PackedWeight


@dataclass(frozen=True)
class DraftBlock:
    """One draft stage: a window-only layer whose queries see context latents and the whole drafted block."""

    stage: int
    attn_site: HyperSite
    ffn_site: HyperSite
    attention: AttentionWeights
    moe: MoeLayer

    @classmethod
    def load(cls, checkpoint: Checkpoint, stage: int, ops: Ops) -> DraftBlock:
        """Read ``mtp.{stage}.*``."""
        config = checkpoint.config
        prefix = f"mtp.{stage}"
        return cls(
            stage=stage,
            attn_site=HyperSite.load(checkpoint, prefix, "attn", ops),
            ffn_site=HyperSite.load(checkpoint, prefix, "ffn", ops),
            attention=AttentionWeights.load(checkpoint, prefix, -1 - stage, ops),
            moe=MoeLayer.load(
                checkpoint, prefix, config.dspark_n_routed_experts, config.dspark_num_experts_per_tok, ops
            ),
        )


@dataclass(frozen=True)
class DraftOutput:
    """Drafts of A anchors, B tokens each.

    Attributes:
        tokens: int64 [A, 1 + B], golden token first.
        base_logits: float32 [A, B, V] before the Markov term.
        logits: float32 [A, B, V] with it.
        confidence_logits: float32 [A, B] before the sigmoid.
        confidences: float32 [A, B], estimated probability that the token is accepted if those before it were.
    """

    tokens: torch.Tensor
    base_logits: torch.Tensor
    logits: torch.Tensor
    confidence_logits: torch.Tensor
    confidences: torch.Tensor


@dataclass(frozen=True)
class Anchors(Movable):
    """Where blocks start.

    Attributes:
        golden: int64 [A], known token that begins each block.
        positions: int64 [A], its position; the context is positions ``[max(low, p - W), p)``.
        slots: int64 [A], state slot of its sequence.
        low: int64 [A], first position whose context is in the cache (0, or the kept rows of a truncated
            prompt).
    """

    golden: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    low: torch.Tensor


@dataclass(frozen=True)
class _Seen:
    """What the queries of A blocks look at.

    Attributes:
        records: int64 [A * W], ring records of the contexts, -1 where there is none.
        places: int64 [A * B, W], their place in the loaded contexts for every query, -1 for none.
        own: int64 [A * B, B], the rows of the query's own block.
    """

    records: torch.Tensor
    places: torch.Tensor
    own: torch.Tensor


class Draft:
    """All draft weights, the context writer and the drafting pass."""

    def __init__(self, checkpoint: Checkpoint, target: Transformer) -> None:
        """Load ``mtp.*``; embedding and head are the backbone's."""
        config, ops = checkpoint.config, target.ops
        stages = config.num_nextn_predict_layers
        last = f"mtp.{stages - 1}"
        self.config, self.ops, self.target = config, ops, target
        self.blocks = [DraftBlock.load(checkpoint, stage, ops) for stage in range(stages)]
        self.main_proj = ops.pack_linear(checkpoint.weight("mtp.0.main_proj.weight"))
        self.main_norm = checkpoint.weight("mtp.0.main_norm.weight")
        self.norm = checkpoint.weight(f"{last}.norm.weight")
        self.markov_embed = checkpoint.weight(f"{last}.markov_head.embed.weight")
        self.markov_head: PackedWeight = ops.pack_linear(checkpoint.weight(f"{last}.markov_head.head.weight"))
        self.confidence: PackedWeight = ops.pack_linear(
            checkpoint.weight(f"{last}.confidence_head.proj.weight")
        )

    def bound_to(self, target: Transformer) -> Draft:
        """The same weights beside another binding of the backbone."""
        twin = copy(self)
        twin.target, twin.ops = target, target.ops
        return twin

    def write_context(
        self, features: torch.Tensor, rows: Rows, view: StepView, probe: Probe = no_probe
    ) -> None:
        """Store the context latents of computed rows, from their features [T, targets * D] (section 7.1)."""
        ops, rope = self.ops, self.target.plain_rope
        probe("features", -1, features)
        context = ops.rms_norm(ops.linear(features, self.main_proj), self.main_norm, self.config.rms_norm_eps)
        for block in self.blocks:
            latents = block.attention.window_latent(ops, context, rope.at(rows.positions), probe)
            view.draft_window(block.stage, latents, rows)

    def propose(
        self, anchors: Anchors, caches: Caches, probe: Probe = no_probe, num_drafts: int | None = None
    ) -> DraftOutput:
        """Draft greedily from every anchor (sections 7.2 to 7.4); caches stay as they are.

        ``num_drafts`` decodes only the first so many tokens of each block: the same ones, for less.
        """
        config, ops = self.config, self.ops
        num_anchors, size = anchors.golden.shape[0], config.dspark_block_size
        token_ids = anchors.golden.new_full((num_anchors, size), config.dspark_noise_token_id)
        token_ids[:, 0] = anchors.golden
        positions = (anchors.positions[:, None] + torch.arange(size, device=ops.device)).flatten()
        streams = initial_streams(self.target.embedding[token_ids.flatten()], config.hc_mult)
        seen = self._seen(anchors, caches.shape.draft_ring)
        for block, pool in zip(self.blocks, caches.draft_window, strict=True):
            streams = self._stage(block, streams, positions, pool, seen, probe)
        if num_drafts is not None and num_drafts < size:
            streams = streams.take(
                torch.arange(num_anchors * size, device=ops.device).view(-1, size)[:, :num_drafts].flatten()
            )
            size = num_drafts
        raw = ops.hc_collapse(streams.x, streams.pre)
        probe("draft_hidden", -1, raw)
        normed = ops.rms_norm(raw, self.norm, config.rms_norm_eps)
        base_logits = self.target.logits(normed).view(num_anchors, size, -1)
        return self._decode(anchors.golden, raw.view(num_anchors, size, -1), base_logits)

    def _seen(self, anchors: Anchors, ring: int) -> _Seen:
        """The same for all stages."""
        window, size = self.config.sliding_window, self.config.dspark_block_size
        device = self.ops.device
        seen = anchors.positions[:, None] + torch.arange(-window, 0, device=device)
        visible = seen >= anchors.low[:, None]
        records = torch.where(visible, anchors.slots[:, None] * ring + seen % ring, -1)
        numbers = torch.arange(visible.numel(), device=device).view(visible.shape)
        places = torch.where(visible, numbers, -1)
        own = torch.arange(len(records) * size, device=device).view(-1, size)
        return _Seen(records.flatten(), places.repeat_interleave(size, 0), own.repeat_interleave(size, 0))

    def _stage(
        self,
        block: DraftBlock,
        streams: Streams,
        positions: torch.Tensor,
        pool: RecordPool,
        seen: _Seen,
        probe: Probe,
    ) -> Streams:
        ops, layer = self.ops, -1 - block.stage
        context = pool.load(ops, seen.records)
        rotary = self.target.plain_rope.at(positions)

        def attend(x: torch.Tensor) -> torch.Tensor:
            _, q = block.attention.queries(ops, x, rotary)
            latents = block.attention.window_latent(ops, x, rotary, no_probe)
            mixed = ops.sparse_attention(q, context, seen.places, latents, seen.own, block.attention.sink)
            return block.attention.output(ops, mixed, rotary)

        def experts(x: torch.Tensor) -> torch.Tensor:
            return block.moe.forward(ops, x, layer, no_probe)

        streams = block.attn_site.run(ops, streams, layer, attend, no_probe)
        streams = block.ffn_site.run(ops, streams, layer, experts, no_probe)
        probe("draft_streams", layer, streams.x)
        return streams

    def _decode(self, golden: torch.Tensor, raw: torch.Tensor, base_logits: torch.Tensor) -> DraftOutput:
        """The sequential part."""
        tokens, logits, scores = self.ops.markov_decode(
            golden, raw, base_logits, self.markov_embed, self.markov_head, self.confidence
        )
        return DraftOutput(tokens, base_logits, logits, scores, self.ops.sigmoid(scores))
