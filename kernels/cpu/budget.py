"""Which drafted rows a step verifies; see ``Ops.verify_budget``. A few hundred numbers: numpy is enough."""

from __future__ import annotations

import numpy as np
import torch


def verify_budget(confidences: torch.Tensor, caps: torch.Tensor, total: int) -> torch.Tensor:
    """See ``Ops.verify_budget``."""
    given = confidences.numpy()
    sound = np.clip(np.where(np.isnan(given), np.float32(0.0), given), np.float32(0.0), np.float32(1.0))
    survival = np.multiply.accumulate(sound, axis=1)  # left to right, each product rounded to float32
    allowed = np.arange(given.shape[1]) < caps.numpy()[:, None]
    order = np.argsort(np.where(allowed, -survival, np.float32(1.0)), axis=None, kind="stable")
    chosen = np.zeros(given.size, np.bool_)
    chosen[order[: max(total, 0)]] = True
    return torch.from_numpy((chosen.reshape(given.shape) & allowed).sum(axis=1))
