"""Mixture-of-experts sublayer: router, routed experts, shared expert (model.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.tracing import Probe
from deepinfer.kernels.interface import Ops, PackedWeight


@dataclass(frozen=True)
class MoeLayer:
    """Weights of one MoE; text positions use ``bias`` (the other one is for image tokens)."""

    gate: PackedWeight
    bias: torch.Tensor
    experts: PackedWeight
    shared: PackedWeight
    num_selected: int
    normalise: bool
    factor: float
    limit: float

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, prefix: str, num_experts: int, num_selected: int, ops: Ops
    ) -> MoeLayer:
        """Read ``{prefix}.ffn.*``, expert by expert."""
        config = checkpoint.config

        def parts(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            gate, down, up = (checkpoint.weight(f"{prefix}.ffn.{name}.w{i}.weight") for i in (1, 2, 3))
            return gate, up, down

        return cls(
            gate=ops.pack_linear(checkpoint.weight(f"{prefix}.ffn.gate.weight")),
            bias=checkpoint.weight(f"{prefix}.ffn.gate.bias"),
            experts=ops.pack_experts(num_experts, lambda e: parts(f"experts.{e}")),
            shared=ops.pack_experts(1, lambda _: parts("shared_experts")),
            num_selected=num_selected,
            normalise=config.norm_topk_prob,
            factor=config.routed_scaling_factor,
            limit=config.swiglu_limit,
        )

    def forward(self, ops: Ops, x: torch.Tensor, layer: int, probe: Probe) -> torch.Tensor:
        """[T, D] -> [T, D]."""
        logits = ops.linear_fp32(x, self.gate)
        ids, weights = ops.route(logits, self.bias, self.num_selected, self.normalise, self.factor)
        probe("router_ids", layer, ids)
        probe("router_weights", layer, weights)
        out = ops.moe(x, ids, weights, self.experts, self.shared, self.limit)
        probe("ffn_out", layer, out)
        return out
