"""What the device kernels are measured against: the same engine on the kernels of the libraries, no promise.

Matrix products, norms and log-softmax are torch's own (cuBLAS chooses how to split a sum by the shape of the
batch, so rows change bits with their company). What no library has, such as MXFP4 experts, attention over
packed caches and index selection, is the Triton kernel of profile fast.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from deepinfer.kernels.gpu.fast_backend import FastGpuOps
from deepinfer.kernels.operands import SiteWeights


class LibraryOps(FastGpuOps):
    """Implements ``kernels.interface.Ops`` with activations rounded to bfloat16, without batch invariance."""

    name = "library"

    def pack_linear(self, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """See ``Ops``: bfloat16 [N, K] or [G, N, K], as a framework would keep it."""
        return weight.detach().to(self.device, torch.bfloat16)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """See ``Ops``."""
        half = x.to(torch.bfloat16)
        if weight.ndim == 2:
            return functional.linear(half, weight).to(torch.float32)
        grouped = half.view(len(x), weight.shape[0], weight.shape[2]).transpose(0, 1)
        return (
            torch.bmm(grouped, weight.transpose(1, 2)).transpose(0, 1).reshape(len(x), -1).to(torch.float32)
        )

    def linear_fp32(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """See ``Ops``."""
        half = x.to(torch.bfloat16)
        if half.device.type == "cpu":
            return functional.linear(half.to(torch.float32), weight.to(torch.float32))
        product: torch.Tensor = torch.mm(half, weight.T, out_dtype=torch.float32)
        return product

    def rms_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """See ``Ops``."""
        return functional.rms_norm(x, (x.shape[-1],), gain, eps).to(torch.bfloat16).to(torch.float32)

    def _site_row(self, streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights) -> torch.Tensor:
        return self.rms_norm(self.hc_collapse(streams, pre), site.gain, site.rms_eps)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return logits.log_softmax(-1)
