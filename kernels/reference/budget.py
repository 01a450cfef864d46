"""Which drafted rows a step verifies, in plain torch; see ``Ops.verify_budget``."""

from __future__ import annotations

import torch


def verify_budget(confidences: torch.Tensor, caps: torch.Tensor, total: int) -> torch.Tensor:
    """See ``Ops.verify_budget``."""
    num_sequences, size = confidences.shape
    sound = torch.nan_to_num(confidences, nan=0.0).clamp(0.0, 1.0)
    survival = sound.clone()
    for i in range(1, size):
        survival[:, i] = survival[:, i - 1] * sound[:, i]
    allowed = torch.arange(size, device=caps.device)[None] < caps[:, None]
    ranked = torch.where(allowed, survival, -1.0).flatten().sort(descending=True, stable=True).indices
    chosen = torch.zeros(num_sequences * size, dtype=torch.bool, device=caps.device)
    chosen[ranked[: max(total, 0)]] = True
    return (chosen.view(num_sequences, size) & allowed).sum(1)
