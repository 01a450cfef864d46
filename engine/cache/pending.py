"""What a ratio-2 compressor keeps of a token whose partner has not come (engine.md section 4.3).

Without drafts one half per sequence is enough. Drafted rows may be taken back, and the row that is last after
that may be any of them, so the halves are kept by position, as many as one draft block can leave open.
"""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.engine.step_plan import Int64


class PendingHalves:
    """Values and scores of waiting tokens, float32 [slots * depth, C] each."""

    def __init__(self, num_slots: int, width: int, max_drafts: int) -> None:
        """Allocate for steps that may take back up to ``max_drafts`` rows of a sequence."""
        self._max_drafts = max_drafts
        self._depth = max_drafts // 2 + 1
        self.values = torch.zeros(num_slots * self._depth, width)
        self.scores = torch.zeros(num_slots * self._depth, width)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one sequence."""
        return 2 * 4 * self._depth * self.values.shape[1]

    def waiting(self, positions: Int64, last: Int64) -> Int64:
        """Rows whose half may be wanted later: first tokens of a pair that may turn out to be the last row.

        Args:
            positions: int64 [T], of the rows of a step.
            last: int64 [T], the last position of each row's chunk.
        """
        return np.flatnonzero((positions % 2 == 0) & (positions >= last - self._max_drafts))

    def records(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where the halves of tokens at even ``positions`` int64 [n] of ``slots`` int64 [n] are kept."""
        return slots * self._depth + positions // 2 % self._depth
