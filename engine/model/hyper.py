"""One hyper-connection site: mixes for the next site, collapse for this one, expand after it.

model.md section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.tracing import Probe
from deepinfer.kernels.interface import Ops, PackedWeight


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


def initial_streams(embedded: torch.Tensor, num_streams: int) -> Streams:
    """Every stream starts as the embedding [T, D]; the first collapse reads stream 0."""
    pre = torch.zeros(embedded.shape[0], num_streams)
    pre[:, 0] = 1.0
    return Streams(embedded[:, None].repeat(1, num_streams, 1), pre)


@dataclass(frozen=True)
class HyperSite:
    """Weights of one site (``kind`` is ``attn`` or ``ffn``) and how to run a sublayer inside it."""

    kind: str
    fn: PackedWeight
    base: torch.Tensor
    scale: torch.Tensor
    config: ModelConfig

    @classmethod
    def load(cls, checkpoint: Checkpoint, prefix: str, kind: str, ops: Ops) -> HyperSite:
        """Read ``{prefix}.hc_{kind}_*``."""
        fn, base, scale = (
            checkpoint.weight(f"{prefix}.hc_{kind}_{part}") for part in ("fn", "base", "scale")
        )
        return cls(kind, ops.pack_linear(fn), base, scale, checkpoint.config)

    def run(
        self,
        ops: Ops,
        streams: Streams,
        layer: int,
        sublayer: Callable[[torch.Tensor], torch.Tensor],
        probe: Probe,
    ) -> Streams:
        """Collapse with the previous site's ``pre``, apply ``sublayer`` [T, D] -> [T, D], expand."""
        config = self.config
        pre, post, comb = ops.hc_mix(
            streams.x,
            self.fn,
            self.base,
            self.scale,
            config.hc_sinkhorn_iters,
            config.hc_eps,
            config.rms_norm_eps,
        )
        probe(f"hc_{self.kind}_pre", layer, pre)
        probe(f"hc_{self.kind}_post", layer, post)
        probe(f"hc_{self.kind}_comb", layer, comb)
        out = sublayer(ops.hc_collapse(streams.x, streams.pre))
        return Streams(ops.hc_expand(streams.x, out, post, comb), pre)
