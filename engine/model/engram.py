"""Engram: n-gram memory added to the residual streams before a layer's attention site.

model.md section 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.engram_table import EngramTable
from deepinfer.engine.model.engram_hash import EngramHash
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.tracing import Probe
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import PackedWeight


@dataclass(frozen=True)
class EngramLayer:
    """Weights of one Engram.

    Its table stays memory-mapped in the checkpoint, rows are decoded as they are read.
    """

    layer: int
    slot: int
    table: EngramTable
    wkv: PackedWeight
    gains: torch.Tensor
    eps: float

    @classmethod
    def load(cls, checkpoint: Checkpoint, layer: int, slot: int, ops: Ops) -> EngramLayer:
        """Read ``layers.{layer}.engram.*`` without the table."""
        prefix = f"layers.{layer}.engram"
        gains = checkpoint.weight(f"{prefix}.q_weight") * checkpoint.weight(f"{prefix}.k_weight")
        wkv = ops.pack_linear(checkpoint.weight(f"{prefix}.wkv.weight"))
        return cls(layer, slot, checkpoint.engram_table(layer), wkv, gains, checkpoint.config.rms_norm_eps)

    def forward(
        self, ops: Ops, streams: torch.Tensor, hashes: EngramHash, history: Int64, probe: Probe
    ) -> torch.Tensor:
        """[T, S, D] -> [T, S, D]; ``history`` are compressed ids int64 [T, n]."""
        rows = hashes.rows(self.slot, history)
        probe("engram_rows", self.layer, torch.from_numpy(rows))
        found = torch.from_numpy(self.table.rows(rows)).flatten(1)
        return ops.engram_gate(streams, ops.linear(found, self.wkv), self.gains, self.eps)
