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
from deepinfer.engine.transfer import Movable
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import PackedWeight


@dataclass(frozen=True)
class Memory(Movable):
    """Table rows of a step: their numbers int64 [T, n] on the host, and float32 [T, n * W] for the layer."""

    rows: Int64
    found: torch.Tensor


@dataclass(frozen=True)
class EngramLayer:
    """Weights of one Engram.

    Its table stays memory-mapped in the checkpoint, on the host; rows are decoded as they are read.
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

    def look_up(self, hashes: EngramHash, history: Int64) -> Memory:
        """What the table says; ``history`` are compressed ids int64 [T, n]."""
        rows = hashes.rows(self.slot, history)
        return Memory(rows=rows, found=torch.from_numpy(self.table.rows(rows)).flatten(1))

    def forward(self, ops: Ops, streams: torch.Tensor, memory: Memory, probe: Probe) -> torch.Tensor:
        """[T, S, D] -> [T, S, D]."""
        probe("engram_rows", self.layer, torch.from_numpy(memory.rows))
        return ops.engram_gate(streams, ops.linear(memory.found, self.wkv), self.gains, self.eps)
