"""Expert weights in panel order, packed one expert at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.kernels.cpu.linear import PackedLinear, Panels, halved, is_half, panels_of


@dataclass(frozen=True)
class PackedExperts:
    """Panels [E, panels, K, PANEL] of gate and up (K = D) and of down (K = I), as in ``PackedLinear``."""

    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear

    @property
    def num_experts(self) -> int:
        """E."""
        return int(self.gate.panels.shape[0])

    @property
    def cost(self) -> int:
        """Multiply-adds of one row in one expert."""
        return 3 * int(self.gate.panels[0].size)


def pack_experts(
    num_experts: int, load: Callable[[int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
) -> PackedExperts:
    """Pack experts one at a time; ``load(e)`` gives gate [I, D], up [I, D] and down [D, I] of expert e."""
    if num_experts < 1:
        raise ValueError("pack_experts: a layer needs at least one expert")
    stacks = [_Stack(num_experts), _Stack(num_experts), _Stack(num_experts)]
    for e in range(num_experts):
        for stack, weight in zip(stacks, load(e), strict=True):
            stack.put(e, weight)
    return PackedExperts(*(stack.packed() for stack in stacks))


class _Stack:
    """One matrix of all experts; bfloat16 for as long as that is exact."""

    def __init__(self, num_experts: int) -> None:
        self._num_experts, self._num_outputs = num_experts, 0
        self._panels: Panels | None = None

    def put(self, e: int, weight: torch.Tensor) -> None:
        """Take the weight float32 [N, K] of expert ``e``; experts come in order."""
        panels = panels_of(weight.detach().to(torch.float32).numpy()[None])[0]
        self._num_outputs = weight.shape[0]
        if self._panels is None:
            self._panels = np.zeros((self._num_experts, *panels.shape), np.uint16)
        if self._panels.dtype == np.uint16 and not is_half(panels):
            self._panels = (self._panels.astype(np.uint32) << np.uint32(16)).view(np.float32)
        self._panels[e] = halved(panels) if self._panels.dtype == np.uint16 else panels

    def packed(self) -> PackedLinear:
        assert self._panels is not None
        return PackedLinear(self._panels, self._num_outputs)
