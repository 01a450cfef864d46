"""Weights of attention sublayers, and their window latents (model.md sections 3.1, 3.2, 3.6, 3.7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.tracing import Probe
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import LowRank, PackedWeight, Rotary


@dataclass(frozen=True)
class AttentionWeights:
    """What every layer owns, whatever its role; ``Ops.attention`` takes it."""

    layer: int
    query: LowRank
    wkv: PackedWeight
    kv_norm: torch.Tensor
    wo_a: PackedWeight
    wo_b: PackedWeight
    sink: torch.Tensor
    num_heads: int
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
            query=LowRank(
                down=ops.pack_linear(weight("wq_a.weight")),
                gain=weight("q_norm.weight"),
                up=ops.pack_linear(weight("wq_b.weight")),
                eps=config.rms_norm_eps,
            ),
            wkv=ops.pack_linear(weight("wkv.weight")),
            kv_norm=weight("kv_norm.weight"),
            wo_a=ops.pack_linear(wo_a),
            wo_b=ops.pack_linear(weight("wo_b.weight")),
            sink=weight("attn_sink"),
            num_heads=config.num_attention_heads,
            eps=config.rms_norm_eps,
        )

    def window_latent(self, ops: Ops, x: torch.Tensor, rotary: Rotary, probe: Probe) -> torch.Tensor:
        """[T, D] -> [T, C], key and value of each token as its cache record gives it back."""
        latent = ops.window_latent(x, self.wkv, self.kv_norm, self.eps, rotary)
        probe("window_kv", self.layer, latent)
        return latent
