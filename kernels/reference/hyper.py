"""Hyper-connection mixes and Sinkhorn normalisation in plain torch (model.md section 2.2).

Legend: t rows, a input streams, b output streams, d channels, i mixing logits.
"""

from __future__ import annotations

import torch


def sinkhorn(logits_abt: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Rows and columns near 1, columns normalised last; rows of the step lie in the fast axis."""
    p_abt = logits_abt.softmax(1) + eps
    p_abt /= p_abt.sum(0, keepdim=True) + eps
    for _ in range(iterations - 1):
        p_abt /= p_abt.sum(1, keepdim=True) + eps
        p_abt /= p_abt.sum(0, keepdim=True) + eps
    return p_abt


def mix(
    streams_tad: torch.Tensor,
    fn: torch.Tensor,
    base_i: torch.Tensor,
    scale: torch.Tensor,
    iterations: int,
    hc_eps: float,
    rms_eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coefficients ``pre`` [T, S], ``post`` [T, S], ``comb`` [T, S, S] of one site."""
    num_streams = streams_tad.shape[1]
    flat = streams_tad.flatten(1)
    m_ti = torch.nn.functional.linear(flat, fn) * inverse_rms(flat, rms_eps)
    to_pre, to_post = slice(0, num_streams), slice(num_streams, 2 * num_streams)
    to_comb = slice(2 * num_streams, None)
    pre = torch.sigmoid(m_ti[:, to_pre] * scale[0] + base_i[to_pre]) + hc_eps
    post = 2 * torch.sigmoid(m_ti[:, to_post] * scale[1] + base_i[to_post])
    logits_it = (m_ti[:, to_comb] * scale[2] + base_i[to_comb]).T.contiguous()
    comb_abt = sinkhorn(logits_it.view(num_streams, num_streams, -1), iterations, hc_eps)
    return pre, post, comb_abt.permute(2, 0, 1).contiguous()


def collapse(streams_tad: torch.Tensor, pre_ta: torch.Tensor) -> torch.Tensor:
    """See ``Ops.hc_collapse``, not rounded."""
    return torch.bmm(pre_ta[:, None], streams_tad)[:, 0]


def expand(
    streams_tad: torch.Tensor, out_td: torch.Tensor, post_tb: torch.Tensor, comb_tab: torch.Tensor
) -> torch.Tensor:
    """See ``Ops.hc_expand``, not rounded."""
    mixed_tbd = torch.bmm(comb_tab.transpose(1, 2), streams_tad)
    return mixed_tbd.addcmul_(post_tb[:, :, None], out_td[:, None])


def inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """[..., D] -> [..., 1]: ``rsqrt(mean(x ** 2) + eps)``."""
    return torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps)
