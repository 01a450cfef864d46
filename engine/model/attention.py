"""Attention sublayer: query path, window latent, output path (model.md sections 3.1, 3.2, 3.6, 3.7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model.rope import RopeTable
from deepinfer.engine.tracing import Probe
from deepinfer.kernels.interface import Ops, PackedWeight


@dataclass(frozen=True)
class AttentionWeights:
    """What every layer owns, whatever its role."""

    layer: int
    wq_a: PackedWeight
    q_norm: torch.Tensor
    wq_b: PackedWeight
    wkv: PackedWeight
    kv_norm: torch.Tensor
    wo_a: PackedWeight
    wo_b: PackedWeight
    sink: torch.Tensor
    num_heads: int
    head_dim: int
    eps: float

    @classmethod
    def load(cls, checkpoint: Checkpoint, prefix: str, layer: int, ops: Ops) -> AttentionWeights:
        """Read ``{prefix}.attn.*``."""
        config = checkpoint.config

        def weight(name: str) -> torch.Tensor:
            return checkpoint.weight(f"{prefix}.attn.{name}")

        wo_a = weight("wo_a.weight").view(config.o_groups, config.o_lora_rank, -1)
        return cls(
            layer=layer,
            wq_a=ops.pack_linear(weight("wq_a.weight")),
            q_norm=weight("q_norm.weight"),
            wq_b=ops.pack_linear(weight("wq_b.weight")),
            wkv=ops.pack_linear(weight("wkv.weight")),
            kv_norm=weight("kv_norm.weight"),
            wo_a=ops.pack_linear(wo_a),
            wo_b=ops.pack_linear(weight("wo_b.weight")),
            sink=weight("attn_sink"),
            num_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
        )

    def query_latent(self, ops: Ops, x: torch.Tensor) -> torch.Tensor:
        """[T, D] -> [T, Q], also the input of the index queries."""
        return ops.rms_norm(ops.linear(x, self.wq_a), self.q_norm, self.eps)

    def queries(self, ops: Ops, qr: torch.Tensor, positions: torch.Tensor, rope: RopeTable) -> torch.Tensor:
        """[T, Q] -> rotated [T, H, C]."""
        q = ops.linear(qr, self.wq_b).view(-1, self.num_heads, self.head_dim)
        return ops.rotate_(q, rope.cos, rope.sin, positions)

    def window_latent(
        self, ops: Ops, x: torch.Tensor, positions: torch.Tensor, rope: RopeTable, probe: Probe
    ) -> torch.Tensor:
        """[T, D] -> [T, C], key and value of each token as its cache record gives it back."""
        latent = ops.rms_norm(ops.linear(x, self.wkv), self.kv_norm, self.eps)
        latent = ops.rotate_(latent[:, None], rope.cos, rope.sin, positions)[:, 0]
        latent = ops.mxfp8_(latent)
        probe("window_kv", self.layer, latent)
        return latent

    def output(self, ops: Ops, mixed: torch.Tensor, positions: torch.Tensor, rope: RopeTable) -> torch.Tensor:
        """Attention result [T, H, C] -> [T, D]; the inverse rotation makes the values' positions relative."""
        turned = ops.rotate_(mixed, rope.cos, rope.sin, positions, inverse=True)
        return ops.linear(ops.linear(turned.flatten(1), self.wo_a), self.wo_b)
