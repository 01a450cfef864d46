"""Mixture-of-experts sublayer: router, routed experts, shared expert (model.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import MoeWeights, SiteInput


@dataclass(frozen=True)
class MoeLayer:
    """Weights of one MoE; text positions use ``bias`` (the other one is for image tokens)."""

    weights: MoeWeights

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, prefix: str, num_experts: int, num_selected: int, ops: Ops
    ) -> MoeLayer:
        """Read ``{prefix}.ffn.*``, expert by expert."""
        config = checkpoint.config

        def parts(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            gate, down, up = (checkpoint.weight(f"{prefix}.ffn.{name}.w{i}.weight") for i in (1, 2, 3))
            return gate, up, down

        weights = MoeWeights(
            gate=ops.pack_linear(checkpoint.weight(f"{prefix}.ffn.gate.weight")),
            bias=checkpoint.weight(f"{prefix}.ffn.gate.bias"),
            experts=ops.pack_experts(num_experts, lambda e: parts(f"experts.{e}")),
            shared=ops.pack_experts(1, lambda _: parts("shared_experts")),
            num_selected=num_selected,
            normalise=config.norm_topk_prob,
            factor=config.routed_scaling_factor,
            limit=config.swiglu_limit,
        )
        return cls(weights)

    def expand(
        self, ops: Ops, streams: torch.Tensor, site: SiteInput, layer: int, probe: Probe
    ) -> torch.Tensor:
        """Streams [T, S, D] behind the experts applied to the input of ``site``."""
        if probe is no_probe:
            return ops.moe_expand(streams, site, self.weights)
        out, ids, shares = ops.routed_moe(site.x, self.weights)
        probe("router_ids", layer, ids)
        probe("router_weights", layer, shares)
        probe("ffn_out", layer, out)
        return ops.hc_expand(streams, out, site.post, site.comb)
