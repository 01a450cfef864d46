"""What a ratio-2 compressor keeps of a token whose partner has not come (engine.md section 4.3).

Without drafts one half per sequence is enough. Drafted rows may be taken back, and the row that is last after
that may be any of them, so the halves are kept by position, as many as one draft block can leave open.
``engine.step_records`` says where each half lies.
"""

from __future__ import annotations

import torch

from deepinfer.engine.step_records import half_depth


class PendingHalves:
    """Values and scores of waiting tokens, float32 [slots * depth + 1, C] each."""

    def __init__(
        self, num_slots: int, width: int, max_drafts: int, device: torch.device | None = None
    ) -> None:
        """Allocate for steps that may take back up to ``max_drafts`` rows of a sequence."""
        self._depth = half_depth(max_drafts)
        # the last place is nobody's: padding rows write there
        self.values = torch.zeros(num_slots * self._depth + 1, width, device=device)
        self.scores = torch.zeros(num_slots * self._depth + 1, width, device=device)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one sequence."""
        return 2 * 4 * self._depth * self.values.shape[1]
