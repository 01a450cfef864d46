"""Expert weights in panel order, packed one expert at a time, in the fewest bytes that hold them exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.code_tile import GROUP, MAGNITUDES, TAKES_CODES
from deepinfer.kernels.cpu.expert_products import CODES, HALVES, PLAIN, Place
from deepinfer.kernels.cpu.fma_tile import PANEL
from deepinfer.kernels.cpu.linear import halved, is_half, panels_of, widened

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Stored = Float32 | npt.NDArray[np.uint16] | Bytes
_BIAS = 127


@dataclass(frozen=True)
class ExpertStack:
    """One matrix of all experts.

    Attributes:
        panels: [E, panels, K, PANEL] float32 or bfloat16 as uint16, or codes [E, panels, bytes]
            (``code_tile``).
        num_inputs: K.
    """

    panels: Stored
    num_inputs: int

    @cached_property
    def place(self) -> Place:
        """What kernels are told."""
        form = {4: PLAIN, 2: HALVES, 1: CODES}[self.panels.itemsize]
        return self.panels.ctypes.data, form, self.panels.shape[1], self.num_inputs


@dataclass(frozen=True)
class PackedExperts:
    """Stacks of gate and up (K = D) and of down (K = I)."""

    gate: ExpertStack
    up: ExpertStack
    down: ExpertStack

    @property
    def num_experts(self) -> int:
        """E."""
        return int(self.gate.panels.shape[0])

    @cached_property
    def cost(self) -> int:
        """Multiply-adds of one row in one expert."""
        _, _, num_panels, depth = self.gate.place
        return 3 * num_panels * PANEL * depth


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


def coded(panels: Float32) -> Bytes | None:
    """Codes uint8 [panels, bytes] of panels [panels, K, PANEL] (``code_tile``); None if there are none.

    The largest code of a group is 4 or 6: whatever e2m1 holds with larger scales it holds with this one too.
    """
    num_panels, depth, _ = panels.shape
    if depth % GROUP:
        return None
    groups = panels.reshape(num_panels, depth // GROUP, GROUP, PANEL)
    largest = np.abs(groups).max(2)
    if not np.isfinite(largest).all():
        return None
    exponents = np.where(
        largest > 0, np.frexp(largest)[1] - 3, 0
    )  # 4 times this power is at most the largest
    if (exponents + _BIAS < 1).any():
        return None
    quotients = (groups / np.ldexp(np.float32(1.0), exponents)[:, :, None]).reshape(panels.shape)
    values = np.array(MAGNITUDES, np.float32)
    codes = np.minimum(np.searchsorted(values, np.abs(quotients)), len(values) - 1)
    if (values[codes] != np.abs(quotients)).any():
        return None
    codes |= np.signbit(quotients).astype(np.int64) << 3
    eights = codes.astype(np.uint32).reshape(num_panels, depth // 8, 8, PANEL)
    words = np.bitwise_or.reduce(eights << (4 * np.arange(8, dtype=np.uint32))[:, None], axis=2)
    parts = words.astype("<u4").view(np.uint8), (exponents + _BIAS).astype(np.uint8)
    return np.concatenate([part.reshape(num_panels, -1) for part in parts], axis=1)


def decoded(codes: Bytes, depth: int) -> Float32:
    """Panels [panels, K, PANEL] behind codes uint8 [panels, bytes]."""
    num_panels, cut = len(codes), depth * PANEL // 2
    words = codes[:, :cut].copy().view("<u4").reshape(num_panels, depth // 8, 1, PANEL)
    found = (words >> (4 * np.arange(8, dtype=np.uint32))[:, None] & 15).reshape(num_panels, -1, GROUP, PANEL)
    exponents = codes[:, cut:].astype(np.int32).reshape(num_panels, -1, 1, PANEL) - _BIAS
    values = np.array([*MAGNITUDES, *(-value for value in MAGNITUDES)], np.float32)
    panels: Float32 = np.ldexp(values[found], exponents).reshape(num_panels, depth, PANEL)
    return panels


class _Stack:
    """One matrix of all experts, in the fewest bytes that hold all of them exactly so far."""

    def __init__(self, num_experts: int) -> None:
        self._num_experts, self._num_inputs = num_experts, 0
        self._panels: Stored | None = None

    def put(self, e: int, weight: torch.Tensor) -> None:
        """Take the weight float32 [N, K] of expert ``e``; experts come in order."""
        panels = panels_of(weight.detach().to(torch.float32).numpy()[None])[0]
        self._num_inputs = weight.shape[1]
        codes = coded(panels) if TAKES_CODES else None
        if self._panels is None:
            shape, kind = (panels.shape, np.uint16) if codes is None else (codes.shape, np.uint8)
            self._panels = np.zeros((self._num_experts, *shape), kind)
        if self._panels.dtype == np.uint8 and codes is None:
            before = self._panels
            self._panels = np.zeros((self._num_experts, *panels.shape), np.uint16)
            for number in range(e):
                self._panels[number] = halved(decoded(before[number], self._num_inputs))
        if self._panels.dtype == np.uint16 and not is_half(panels):
            self._panels = widened(self._panels)
        if self._panels.dtype == np.uint8 and codes is not None:
            self._panels[e] = codes
        else:
            self._panels[e] = halved(panels) if self._panels.dtype == np.uint16 else panels

    def packed(self) -> ExpertStack:
        """The stack of all experts."""
        assert self._panels is not None
        return ExpertStack(self._panels, self._num_inputs)
