"""Hyper-connection mixes and Sinkhorn normalisation in plain torch (model.md section 2.2)."""

from __future__ import annotations

import torch


def sinkhorn(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """[T, S, S] (input stream, output stream) -> rows and columns near 1, columns normalised last."""
    p = logits.softmax(-1) + eps
    p = p / (p.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        p = p / (p.sum(-1, keepdim=True) + eps)
        p = p / (p.sum(-2, keepdim=True) + eps)
    return p


def mix(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    iterations: int,
    hc_eps: float,
    rms_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coefficients ``pre`` [T, S], ``post`` [T, S], ``comb`` [T, S, S] of one site."""
    num_streams = streams.shape[1]
    flat = streams.flatten(1)
    m = (flat @ fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    to_pre, to_post = slice(0, num_streams), slice(num_streams, 2 * num_streams)
    to_comb = slice(2 * num_streams, None)
    pre = torch.sigmoid(m[:, to_pre] * scale[0] + base[to_pre]) + hc_eps
    post = 2 * torch.sigmoid(m[:, to_post] * scale[1] + base[to_post])
    logits = (m[:, to_comb] * scale[2] + base[to_comb]).view(-1, num_streams, num_streams)
    return pre, post, sinkhorn(logits, iterations, hc_eps)
