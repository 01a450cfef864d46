"""What a turn found: in one buffer on the device, and as arrays of the host.

Legend: R sequences, T rows, B drafted tokens of a sequence (0 if nothing was drafted).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.api import Float32Array
from deepinfer.engine.step_plan import Int64


@dataclass(frozen=True, kw_only=True)
class Found:
    """Tensors of a turn.

    Attributes:
        ids: int64 [T], tokens drawn.
        raw, processed: float32 [T], their log-probabilities.
        start, count, accepted: int64 [R]: first position, rows, and drafts that are what was drawn.
        drafts: int64 [R, B], what may come next.
        confidences: float32 [R, B].
    """

    ids: torch.Tensor
    raw: torch.Tensor
    processed: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    accepted: torch.Tensor
    drafts: torch.Tensor
    confidences: torch.Tensor

    def packed(self) -> torch.Tensor:
        """Everything in one buffer, uint8."""
        whole = torch.cat([self.ids, self.start, self.count, self.accepted, self.drafts.flatten()])
        real = torch.cat([self.raw, self.processed, self.confidences.flatten()])
        return torch.cat([whole.view(torch.uint8), real.view(torch.uint8)])


@dataclass(frozen=True)
class Outcome:
    """The same on the host, see ``Found``."""

    ids: Int64
    start: Int64
    count: Int64
    accepted: Int64
    drafts: Int64
    raw: Float32Array
    processed: Float32Array
    confidences: Float32Array

    @classmethod
    def of(cls, packed: npt.NDArray[np.uint8], num_rows: int, num_sequences: int, num_drafts: int) -> Outcome:
        """Read what ``Found.packed`` wrote."""
        blocks = num_sequences * num_drafts
        sizes = [num_rows, num_sequences, num_sequences, num_sequences, blocks]
        split = 8 * sum(sizes)
        ids, start, count, accepted, drafts = np.split(packed[:split].view(np.int64), np.cumsum(sizes)[:-1])
        raw, processed, confidences = np.split(
            packed[split:].view(np.float32), np.cumsum([num_rows, num_rows])
        )
        shape = (num_sequences, num_drafts)
        return cls(
            ids,
            start,
            count,
            accepted,
            drafts.reshape(shape),
            raw,
            processed,
            confidences.reshape(shape),
        )
