"""Compressor of a KV source layer: completed groups of tokens become latents, cache entries and index keys.

model.md sections 3.3 and 4.1. A token whose group is incomplete leaves its fp32 value and score as state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.batch import Step
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
        rows = step.encoder
        if self.ratio == 1:
            pooled, entries, chunk = ops.linear(x, self.wkv), rows.positions, rows.chunk
        else:
            pooled, completed = self._pool(ops, x, step, view.caches)
            entries, chunk = rows.positions[completed] // 2, rows.chunk[completed]
        if pooled.shape[0] == 0:
            return
        latent = ops.rms_norm(pooled, self.norm, self.eps)
        rotary = rope.at(entries * self.ratio)
        keys = ops.rotated_latent(latent, self.index_wk, self.index_norm, self.eps, rotary)
        main = ops.rotate_(latent[:, None], rotary.cos, rotary.sin, rotary.positions)[:, 0]
        view.write(self.layer, chunk, entries, main, keys)  # storing rounds; a second rounding could differ
        if probe is not no_probe:
            probe("compressed_kv", self.layer, ops.fp4_(main) if self.fp4 else ops.mxfp8_(main))
            probe("index_key", self.layer, ops.mxfp4_(keys))

    def _pool(
        self, ops: Ops, x: torch.Tensor, step: Step, caches: Caches
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pooled pairs [J, C] and the row of each pair's second token, int64 [J]."""
        values, scores = ops.linear_fp32(x, self.wkv), ops.linear_fp32(x, self.wgate)
        rows, pending = step.encoder, caches.pending[self.layer]
        positions = rows.positions.numpy()
        completed = np.flatnonzero(positions % 2 == 1)
        starts_odd, sizes = np.array([(c.start % 2, c.end - c.start) for c in step.chunks], np.int64).T
        late = (np.cumsum(sizes) - sizes)[starts_odd == 1]  # whose partner came in an earlier step
        pairs = torch.from_numpy(np.searchsorted(completed, late))
        waiting = torch.from_numpy(pending.waiting(positions, rows.last.numpy()))
        second = torch.from_numpy(completed)
        value_pairs = torch.stack([values[second - 1], values[second]], 1)
        score_pairs = torch.stack([scores[second - 1], scores[second]], 1)
        partners = pending.records(rows.slots[late], rows.positions[late] - 1)
        value_pairs[pairs, 0] = pending.values[partners]
        score_pairs[pairs, 0] = pending.scores[partners]
        places = pending.records(rows.slots[waiting], rows.positions[waiting])
        pending.values[places] = values[waiting]
        pending.scores[places] = scores[waiting]
        return ops.pool_pairs(value_pairs, score_pairs), second
