"""What lies around sublayers in profile fast: experts, and streams from one sublayer to the next.

The chains here run as few launches as the bits allow; ``chains`` says in ops what each stands for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepinfer.kernels.gpu import expert_gemm, fast_experts, site_rows, site_turns
from deepinfer.kernels.gpu.backend import GpuOps
from deepinfer.kernels.gpu.branches import NUM_LANES
from deepinfer.kernels.gpu.fast_experts import AnyExperts
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.site_turns import Pairs
from deepinfer.kernels.operands import MoeWeights, SiteInput, SiteWeights

_PARTIALS, _LANE_PARTIALS, _TILES = 1 << 22, 1 << 20, 1 << 14


class FastSublayers(GpuOps):
    """Part of ``FastGpuOps``, with the room that its products sum in."""

    def __init__(self, round_caches: bool, device: torch.device) -> None:
        """Bind the device; takes 40 MiB for partial sums there. For one caller's stream at a time."""
        super().__init__(True, round_caches, device)
        sizes = _PARTIALS, *([_LANE_PARTIALS] * NUM_LANES)
        self._workspaces = [Workspace.on(device, size, _TILES) for size in sizes]

    @property
    def _workspace(self) -> Workspace:
        """That of the stream that launches go to now: two branches of a graph must not share one."""
        return self._workspaces[self.branches.lane]

    def _site_row(self, streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights) -> torch.Tensor:
        return site_rows.site_row(streams, pre, site.gain, site.rms_eps, True)

    def moe(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        experts: AnyExperts,
        shared: AnyExperts,
        limit: float,
    ) -> torch.Tensor:
        """See ``Ops``."""
        added = self._shared_expert(x, shared, limit)
        return fast_experts.moe(x, expert_ids, weights, experts, added, limit)

    def routed_moe(
        self, x: torch.Tensor, weights: MoeWeights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        pairs, ids, shares = self._pairs(x, weights)
        return expert_gemm.combine(pairs.routed, pairs.shared, pairs.per_row, torch.float32), ids, shares

    def _pairs(self, x: torch.Tensor, weights: MoeWeights) -> tuple[Pairs, torch.Tensor, torch.Tensor]:
        """What the experts give, not yet combined."""
        w = weights
        added = self._shared_expert(x, w.shared, w.limit)
        logits = self.linear_fp32(x, w.gate)
        ids, shares = self.route(logits, w.bias, w.num_selected, w.normalise, w.factor)
        routed = fast_experts.pair_outputs(x, ids, shares, w.experts, w.limit)
        return Pairs(routed, added(), ids.shape[1]), ids, shares

    def moe_expand(self, streams: torch.Tensor, site: SiteInput, weights: MoeWeights) -> torch.Tensor:
        """See ``Ops``."""
        return site_turns.expanded(streams, self._pairs(site.x, weights)[0], site)

    def moe_next_site(
        self, streams: torch.Tensor, site: SiteInput, weights: MoeWeights, following: SiteWeights
    ) -> tuple[torch.Tensor, SiteInput]:
        """See ``Ops``."""
        return self._turned(streams, self._pairs(site.x, weights)[0], site, following)

    def next_site(
        self, streams: torch.Tensor, added: torch.Tensor, site: SiteInput, following: SiteWeights
    ) -> tuple[torch.Tensor, SiteInput]:
        """See ``Ops``."""
        return self._turned(streams, added, site, following)

    def _turned(
        self, streams: torch.Tensor, added: torch.Tensor | Pairs, site: SiteInput, following: SiteWeights
    ) -> tuple[torch.Tensor, SiteInput]:
        if not site_turns.fits(streams.shape[2]):
            expanded = site_turns.expanded(streams, added, site)
            return expanded, self.site_input(expanded, site.pre, following)
        expanded, x = site_turns.turned(streams, added, site, following.gain, following.rms_eps)
        return expanded, SiteInput(x, self._mixes(expanded, following))

    def collapsed_norm(
        self, streams: torch.Tensor, pre: torch.Tensor, gain: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return site_rows.collapsed_norm(streams, pre, gain, eps, True)

    def _shared_expert(self, x: torch.Tensor, expert: AnyExperts, limit: float) -> Callable[[], torch.Tensor]:
        """What the shared expert adds, beside the router and the routed ones."""
        return self.beside(lambda: fast_experts.shared_expert(x, expert, limit, self._workspace), len(x))
