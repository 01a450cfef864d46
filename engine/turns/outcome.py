"""What a turn found, as arrays of the host.

Legend: R sequences, T rows, B drafted tokens of a sequence (0 if nothing was drafted).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.api import Float32Array
from deepinfer.engine.step_plan import Int64


@dataclass(frozen=True)
class Outcome:
    """See ``TurnFound``, ``TurnEnd`` and ``TurnPlan``."""

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
        """Read what ``Ops.leave_turn`` wrote."""
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
