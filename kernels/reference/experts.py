"""Router and experts in plain torch (model.md section 5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional


def route(
    logits: torch.Tensor, bias: torch.Tensor, num_selected: int, normalise: bool, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.route``."""
    scores = functional.softplus(logits, threshold=20).sqrt()
    order = (scores + bias).sort(dim=-1, descending=True, stable=True).indices
    ids = order[:, :num_selected].sort(-1).values
    weights = scores.gather(1, ids)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * factor


def _swiglu(
    x: torch.Tensor,
    weight: torch.Tensor,
    parts: tuple[torch.Tensor, ...],
    limit: float,
    rounded: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    gate, up, down = parts
    g, u = rounded(functional.linear(x, gate)), rounded(functional.linear(x, up))
    if limit > 0:
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    return rounded(functional.linear(rounded(functional.silu(g) * u * weight[:, None]), down))


def moe(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    experts: list[tuple[torch.Tensor, ...]],
    shared: list[tuple[torch.Tensor, ...]],
    limit: float,
    rounded: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """See ``Ops.moe``; experts ascend, so every row adds its own in ascending order."""
    out = torch.zeros_like(x)
    for e, parts in enumerate(experts):
        rows, place = (expert_ids == e).nonzero(as_tuple=True)
        if len(rows):
            out[rows] += _swiglu(x[rows], weights[rows, place], parts, limit, rounded)
    return out + _swiglu(x, torch.ones(x.shape[0]), shared[0], limit, rounded)
