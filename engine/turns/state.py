"""What a turn leaves on the device for the one after it, by state slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TurnState:
    """Where every sequence stands; the last row is nobody's, padding writes there.

    Attributes:
        start: int64 [slots + 1], position of the last known token.
        line: int64 [slots + 1, n - 1 + 1 + B], the ids before it, itself, and what was drafted behind it.
        sure: float32 [slots + 1, B], confidences of these drafts.
    """

    start: torch.Tensor
    line: torch.Tensor
    sure: torch.Tensor

    @classmethod
    def empty(cls, num_slots: int, history: int, max_drafts: int, device: torch.device) -> TurnState:
        """Nothing is known; a sequence's first turn reads the table of the host."""
        start = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        line = torch.zeros(num_slots + 1, history + max_drafts, dtype=torch.int64, device=device)
        return cls(start, line, torch.zeros(num_slots + 1, max_drafts, device=device))

    def places(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows of these slots int64 [R]; -1 gives nobody's."""
        return torch.where(slots >= 0, slots, len(self.start) - 1)
