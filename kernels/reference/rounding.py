"""Rounding of activations in profile fast."""

from __future__ import annotations

import torch


def to_bf16(x: torch.Tensor, enabled: bool) -> torch.Tensor:
    """``x`` rounded to bfloat16 and back to float32, or ``x`` itself if not ``enabled``."""
    return x.to(torch.bfloat16).to(torch.float32) if enabled else x
