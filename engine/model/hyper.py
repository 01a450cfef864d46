"""One hyper-connection site: mixes for the next site, collapse for this one, expand after it.

model.md section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.tracing import Probe, no_probe
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import SiteInput, SiteWeights


@dataclass(frozen=True)
class Streams:
    """State between sites.

    ``x`` float32 [T, S, D] and the mixing weights ``pre`` [T, S] made at the site before.
    """

    x: torch.Tensor
    pre: torch.Tensor

    def take(self, rows: torch.Tensor) -> Streams:
        """Only the given rows."""
        return Streams(self.x[rows], self.pre[rows])


@dataclass(frozen=True)
class HyperSite:
    """One site, ``kind`` ``attn`` or ``ffn``, with its sublayer's norm."""

    kind: str
    weights: SiteWeights

    @classmethod
    def load(cls, checkpoint: Checkpoint, prefix: str, kind: str, ops: Ops) -> HyperSite:
        """Read ``{prefix}.hc_{kind}_*`` and ``{prefix}.{kind}_norm.weight``."""
        config = checkpoint.config
        fn, base, scale = (
            checkpoint.weight(f"{prefix}.hc_{kind}_{part}") for part in ("fn", "base", "scale")
        )
        weights = SiteWeights(
            fn=ops.pack_linear(fn),
            base=base,
            scale=scale,
            gain=checkpoint.weight(f"{prefix}.{kind}_norm.weight"),
            iterations=config.hc_sinkhorn_iters,
            hc_eps=config.hc_eps,
            rms_eps=config.rms_norm_eps,
        )
        return cls(kind, weights)

    def enter(self, ops: Ops, streams: Streams, layer: int, probe: Probe) -> SiteInput:
        """Collapse with the previous ``pre``, norm: what the sublayer reads."""
        site = ops.site_input(streams.x, streams.pre, self.weights)
        self._show(site, layer, probe)
        return site

    def follow(
        self, ops: Ops, streams: torch.Tensor, out: torch.Tensor, site: SiteInput, layer: int, probe: Probe
    ) -> tuple[torch.Tensor, SiteInput]:
        """Expand ``streams`` [T, S, D] behind the sublayer of another ``site``, which gave ``out`` [T, D],
        and enter this one.
        """
        expanded, following = ops.next_site(streams, out, site, self.weights)
        self._show(following, layer, probe)
        return expanded, following

    def _show(self, site: SiteInput, layer: int, probe: Probe) -> None:
        if probe is not no_probe:  # to ask for the mixes is to wait for them
            probe(f"hc_{self.kind}_pre", layer, site.pre)
            probe(f"hc_{self.kind}_post", layer, site.post)
            probe(f"hc_{self.kind}_comb", layer, site.comb)
