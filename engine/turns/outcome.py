"""What a turn found, as arrays of the host.

Legend: R sequences, T rows, B drafted tokens of a sequence (0 if nothing was drafted).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

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
        ends = list(accumulate([num_rows, *[num_sequences] * 3, num_sequences * num_drafts], initial=0))
        whole, real = packed[: 8 * ends[-1]].view(np.int64), packed[8 * ends[-1] :].view(np.float32)
        shape = (num_sequences, num_drafts)
        return cls(
            whole[: ends[1]],
            whole[ends[1] : ends[2]],
            whole[ends[2] : ends[3]],
            whole[ends[3] : ends[4]],
            whole[ends[4] :].reshape(shape),
            real[:num_rows],
            real[num_rows : 2 * num_rows],
            real[2 * num_rows :].reshape(shape),
        )
