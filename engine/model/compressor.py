"""Compressor of a KV source layer: completed groups of tokens become latents, cache entries and index keys.

model.md sections 3.3 and 4.1. A token whose group is incomplete leaves its fp32 value and score as state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.batch import Groups, Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model.rope import RopeTable
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import PackedWeight


@dataclass(frozen=True)
class Compressor:
    """Weights of one compressor with its index-key projection."""

    layer: int
    ratio: int
    wkv: PackedWeight
    wgate: PackedWeight | None
    norm: torch.Tensor
    index_wk: PackedWeight
    index_norm: torch.Tensor
    eps: float
    fp4: bool

    @classmethod
    def load(cls, checkpoint: Checkpoint, layer: int, ops: Ops) -> Compressor:
        """Read ``layers.{layer}.attn.compressor.*`` and the key part of its indexer."""
        config = checkpoint.config
        prefix = f"layers.{layer}.attn"
        ratio = config.compress_ratio(layer)
        wgate = (
            ops.pack_linear(checkpoint.weight(f"{prefix}.compressor.wgate.weight")) if ratio == 2 else None
        )
        return cls(
            layer=layer,
            ratio=ratio,
            wkv=ops.pack_linear(checkpoint.weight(f"{prefix}.compressor.wkv.weight")),
            wgate=wgate,
            norm=checkpoint.weight(f"{prefix}.compressor.norm.weight"),
            index_wk=ops.pack_linear(checkpoint.weight(f"{prefix}.indexer.wk.weight")),
            index_norm=checkpoint.weight(f"{prefix}.indexer.k_norm.weight"),
            eps=config.rms_norm_eps,
            fp4=config.use_fp4_sparse_kv,
        )

    def forward(
        self, ops: Ops, x: torch.Tensor, step: Step, view: StepView, rope: RopeTable, probe: Probe
    ) -> None:
        """Write the entries that ``x`` [T, D], the normalised input of all rows of the step, completes."""
        groups = step.groups[self.ratio]
        pooled = ops.linear(x, self.wkv) if self.ratio == 1 else self._pool(ops, x, groups, view.caches)
        if pooled.shape[0] == 0:
            return
        latent = ops.rms_norm(pooled, self.norm, self.eps)
        rotary = rope.at(groups.starts)
        keys = ops.rotated_latent(latent, self.index_wk, self.index_norm, self.eps, rotary)
        main = ops.rotate_(latent[:, None], rotary.cos, rotary.sin, rotary.positions)[:, 0]
        view.write(self.layer, groups, main, keys)  # storing rounds; a second rounding could differ
        if probe is not no_probe:
            probe("compressed_kv", self.layer, ops.fp4_(main) if self.fp4 else ops.mxfp8_(main))
            probe("index_key", self.layer, ops.mxfp4_(keys))

    def _pool(self, ops: Ops, x: torch.Tensor, groups: Groups, caches: Caches) -> torch.Tensor:
        """Pooled pairs [n, C]; what waits for its partner takes the place of what did so before."""
        values, scores = ops.linear_fp32(x, self.wkv), ops.linear_fp32(x, self.wgate)
        pending = caches.pending[self.layer]
        kept = pending.values, pending.scores
        return ops.pool_waiting(values, scores, *kept, groups.pairs, groups.waiting, groups.halves)
