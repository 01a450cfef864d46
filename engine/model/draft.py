"""DSpark: three small layers draft a block of tokens from features of the last backbone layers.

model.md section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import torch

from deepinfer.engine.batch import Rows
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model.attention import AttentionWeights
from deepinfer.engine.model.hyper import HyperSite
from deepinfer.engine.model.moe import MoeLayer
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.engine.transfer import Movable
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, WindowLayer
from deepinfer.kernels.interface import Ops


def load_stage(checkpoint: Checkpoint, stage: int, ops: Ops) -> WindowLayer:
    """Read ``mtp.{stage}.*``: a window-only layer, whose queries see contexts and the whole drafted block."""
    config = checkpoint.config
    prefix = f"mtp.{stage}"
    attention = AttentionWeights.load(checkpoint, prefix, -1 - stage, ops)
    moe = MoeLayer.load(
        checkpoint, prefix, config.dspark_n_routed_experts, config.dspark_num_experts_per_tok, ops
    )
    return WindowLayer(
        attn_site=HyperSite.load(checkpoint, prefix, "attn", ops).weights,
        ffn_site=HyperSite.load(checkpoint, prefix, "ffn", ops).weights,
        query=attention.query,
        num_heads=attention.num_heads,
        latent=attention.wkv,
        latent_gain=attention.kv_norm,
        wo_a=attention.wo_a,
        wo_b=attention.wo_b,
        sink=attention.sink,
        eps=attention.eps,
        moe=moe.weights,
    )


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


class Draft:
    """All draft weights, the context writer and the drafting pass."""

    def __init__(self, checkpoint: Checkpoint, target: Transformer) -> None:
        """Load ``mtp.*``; embedding and head are the backbone's."""
        config, ops = checkpoint.config, target.ops
        stages = config.num_nextn_predict_layers
        last = f"mtp.{stages - 1}"
        self.config, self.ops, self.target = config, ops, target
        self.stages = [load_stage(checkpoint, stage, ops) for stage in range(stages)]
        self.main_proj = ops.pack_linear(checkpoint.weight("mtp.0.main_proj.weight"))
        self.main_norm = checkpoint.weight("mtp.0.main_norm.weight")
        self.head = DraftHead(
            gain=checkpoint.weight(f"{last}.norm.weight"),
            eps=config.rms_norm_eps,
            head=target.head,
            embed=checkpoint.weight(f"{last}.markov_head.embed.weight"),
            markov=ops.pack_linear(checkpoint.weight(f"{last}.markov_head.head.weight")),
            confidence=ops.pack_linear(checkpoint.weight(f"{last}.confidence_head.proj.weight")),
        )
        self.shapes = [
            BlockShape(
                size=1 + number,
                window=config.sliding_window,
                noise_token_id=config.dspark_noise_token_id,
                num_streams=config.hc_mult,
            )
            for number in range(config.dspark_block_size)
        ]

    def bound_to(self, target: Transformer) -> Draft:
        """The same weights beside another binding of the backbone."""
        twin = copy(self)
        twin.target, twin.ops = target, target.ops
        return twin

    def write_context(
        self, features: torch.Tensor, rows: Rows, view: StepView, probe: Probe = no_probe
    ) -> None:
        """Store the context latents of computed rows, from their features [T, targets * D] (section 7.1)."""
        probe("features", -1, features)
        rotary = self.target.plain_rope.at(rows.positions)
        given = features, self.main_proj, self.main_norm, self.config.rms_norm_eps, self.stages, rotary
        if probe is no_probe and not view.saves_draft_windows(rows):
            pools = [pool.bound(self.ops) for pool in view.caches.draft_window]
            self.ops.keep_contexts(*given, pools, rows.draft_ring_records)
            return
        written = self.ops.draft_contexts(*given)
        for stage, latents in enumerate(written):
            probe("window_kv", -1 - stage, latents)
            view.draft_window(stage, latents, rows)

    def propose(
        self, anchors: Anchors, caches: Caches, probe: Probe = no_probe, num_drafts: int | None = None
    ) -> Callable[[], DraftOutput]:
        """Draft greedily from every anchor (sections 7.2 to 7.4); caches stay as they are.

        What comes back waits for the drafts, which may be made meanwhile; see ``Ops.draft_block``.

        ``num_drafts`` tokens are drafted by a block of so many rows, which costs less than a whole block. Its
        rows see each other, so these drafts may differ from the first ones of a whole block.
        """
        shape = self.shapes[-1 if num_drafts is None else num_drafts - 1]
        ops, target = self.ops, self.target
        places = anchors.positions, anchors.slots, anchors.low
        given = (anchors.golden, *places, target.embedding, shape, caches.shape.draft_ring)
        pools = [pool.bound(ops) for pool in caches.draft_window]
        if probe is no_probe:
            rotary = target.plain_rope.at(anchors.positions)
            return ops.draft_block(*given, rotary, self.stages, pools, self.head)
        rows = ops.draft_rows(*given)
        seen, rotary = (rows.records, rows.places, rows.own), target.plain_rope.at(rows.positions)
        streams, pre = rows.streams, rows.pre
        for stage, (layer, pool) in enumerate(zip(self.stages, pools, strict=True)):
            streams, pre = ops.window_layers(streams, pre, [layer], rotary, [pool], *seen)
            probe("draft_streams", -1 - stage, streams)
        output = ops.draft_decode(streams, pre, anchors.golden, self.head)
        probe("draft_hidden", -1, output.hidden)
        return lambda: output
