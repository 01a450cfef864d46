"""Observation of a forward pass: named tensors of every layer, for reference comparison and for bisect."""

from __future__ import annotations

from typing import Protocol

import torch


class Probe(Protocol):
    """Called with every named tensor of a pass; must not change it. No probe costs nothing."""

    def __call__(self, name: str, layer: int, value: torch.Tensor) -> None:
        """``layer`` is the backbone layer, or -1 - stage for a draft stage."""


def no_probe(name: str, layer: int, value: torch.Tensor) -> None:
    """The probe that looks at nothing."""
