"""A drafted block."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from deepinfer.engine.api import Float32Array
from deepinfer.engine.step_plan import Int64


@dataclass(frozen=True)
class Drafts:
    """What may follow the known tokens of a sequence.

    Attributes:
        tokens: int64 [B].
        confidences: float32 [B], estimated probability that a token is accepted if those before it were.
    """

    tokens: Int64
    confidences: Float32Array

    @property
    def size(self) -> int:
        """B."""
        return len(self.tokens)


NO_DRAFTS = Drafts(np.empty(0, np.int64), np.empty(0, np.float32))
"""Nothing was drafted."""


def confidences_of(blocks: Items[Drafts], width: int) -> Float32Array:
    """float32 [n, width] of several blocks, cut there; 0 behind the end of one."""
    found = np.zeros((len(blocks), width), np.float32)
    sizes = np.array([block.size for block in blocks])
    for size in set(sizes.tolist()):
        mine = np.array([block.confidences for block in blocks if block.size == size])
        found[sizes == size, : min(size, width)] = mine[:, :width]
    return found
