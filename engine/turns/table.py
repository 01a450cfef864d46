"""What the host says about a turn: one row of numbers per sequence, copied to the device in one piece.

A turn is a step in which every sequence computes its last known token and possibly drafts behind it.
Everything else that such a step needs (windows, records, entries, random words) follows from these rows on
the device, see ``rows``.

Legend: R sequences of the bucket, q tokens a sequence, n ids an Engram hash looks at, G compress ratios.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_plan import Int64
from deepinfer.kernels.turn_operands import NUM_FIXED


@dataclass(frozen=True, kw_only=True)
class TurnColumns:
    """What changes for the sequences of a turn, int64 [R] each, padding not included.

    Attributes:
        slots: where their state lies.
        drafts: drafted rows, at most.
        starts: position of the known token, ``FROM_DEVICE`` if the turn before leaves it there.
        ends: one past the last position that the known token may have, as far as the host knows.
        contexts: first position whose context the drafter has kept, and all after it.
    """

    slots: Int64
    drafts: Int64
    starts: Int64
    ends: Int64
    contexts: Int64

    def of(self, chosen: npt.NDArray[np.bool_]) -> TurnColumns:
        """Those of some sequences."""
        return TurnColumns(
            slots=self.slots[chosen],
            drafts=self.drafts[chosen],
            starts=self.starts[chosen],
            ends=self.ends[chosen],
            contexts=self.contexts[chosen],
        )


@dataclass(frozen=True)
class TurnShape:
    """Shapes that turns share; a recording is made for each.

    Attributes:
        num_sequences: R, padding included.
        num_rows: T, padding included; R if nothing is drafted.
        width: q, most rows of a sequence.
        num_blocks: blocks of a sequence.
        history: n.
        entries: (ratio, room for entries of all sequences, room for those of the longest), by ratio.
        drafting: what the turn does for drafts.
        num_drafted: drafts that it makes of each sequence, if it does.
        is_shared_out: whether the T - R drafts go to the likeliest ones, which the device alone knows; if
            not, every sequence has as many as its row of the table says.
    """

    num_sequences: int
    num_rows: int
    width: int
    num_blocks: int
    history: int
    entries: tuple[tuple[int, int, int], ...]
    drafting: Drafting = Drafting.PAUSED
    num_drafted: int = 0
    is_shared_out: bool = False

    @property
    def num_drafts(self) -> int:
        """Drafts that all sequences together have rows for."""
        return self.num_rows - self.num_sequences

    @property
    def first_base(self) -> int:
        """G columns: where the entries of a sequence begin among those of all."""
        return NUM_FIXED

    @property
    def first_id(self) -> int:
        """n - 1 columns of earlier ids, -1 before the start, then q: the known token and drafts."""
        return self.first_base + len(self.entries)

    @property
    def first_block(self) -> int:
        """The block table."""
        return self.first_id + self.history - 1 + self.width

    @property
    def num_columns(self) -> int:
        """Numbers of a sequence."""
        return self.first_block + self.num_blocks
