"""Router and experts in plain torch (model.md section 5).

Legend: t rows, e experts, k chosen experts of a row, p (row, expert) pairs sorted by expert, i inner width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from deepinfer.kernels.reference.rounding import to_bf16

Expert = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Gate [I, D], up [I, D], down [D, I]."""


def route(
    logits_te: torch.Tensor, bias_e: torch.Tensor, num_selected: int, normalise: bool, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.route``."""
    scores_te = functional.softplus(logits_te, threshold=20).sqrt_()
    order_te = (scores_te + bias_e).sort(dim=-1, descending=True, stable=True).indices
    ids_tk = order_te[:, :num_selected].sort(-1).values
    weights_tk = scores_te.gather(1, ids_tk)
    if normalise:
        weights_tk = weights_tk / (weights_tk.sum(-1, keepdim=True) + 1e-20)
    return ids_tk, weights_tk * factor


def moe(
    x_td: torch.Tensor,
    ids_tk: torch.Tensor,
    weights_tk: torch.Tensor,
    experts: Sequence[Expert],
    shared: Sequence[Expert],
    limit: float,
    bf16: bool,
) -> torch.Tensor:
    """See ``Ops.moe``, not rounded; every row adds its experts in ascending order, the shared one last."""
    num_rows, num_chosen = ids_tk.shape
    pair_experts, order_p = ids_tk.flatten().sort(stable=True)
    counts = torch.bincount(pair_experts, minlength=len(experts)).tolist()
    x_pd = x_td.index_select(0, order_p // num_chosen)
    routed_pd = _swiglu(x_pd, counts, experts, weights_tk.flatten()[order_p], limit, bf16)
    shared_td = _swiglu(x_td, [num_rows], shared, torch.ones(num_rows), limit, bf16)
    places_tk = order_p.argsort().view(num_rows, num_chosen)
    return shared_td.add_(functional.embedding_bag(places_tk, routed_pd, mode="sum"))


def _swiglu(
    x_pd: torch.Tensor,
    counts: Sequence[int],
    experts: Sequence[Expert],
    weights_p: torch.Tensor,
    limit: float,
    bf16: bool,
) -> torch.Tensor:
    """Expert e takes the next ``counts[e]`` rows of ``x_pd``; [p, D]."""
    gates, ups, downs = zip(*experts, strict=True)
    g_pi = to_bf16(_grouped_linear(x_pd, counts, gates), bf16)
    u_pi = to_bf16(_grouped_linear(x_pd, counts, ups), bf16)
    if limit > 0:
        g_pi, u_pi = g_pi.clamp_(max=limit), u_pi.clamp_(-limit, limit)
    h_pi = functional.silu(g_pi, inplace=True).mul_(u_pi).mul_(weights_p[:, None])
    return to_bf16(_grouped_linear(to_bf16(h_pi, bf16), counts, downs), bf16)


def _grouped_linear(
    x_pk: torch.Tensor, counts: Sequence[int], weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Weight e [N, K] times the next ``counts[e]`` rows of ``x_pk``: [p, N]."""
    out_pn = torch.empty(len(x_pk), weights[0].shape[0])
    first = 0
    for count, weight in zip(counts, weights, strict=True):
        if count:
            torch.mm(x_pk[first : first + count], weight.T, out=out_pn[first : first + count])
            first += count
    return out_pn
