"""Which shape a turn is played in: its own, or a larger one that is recorded already.

A recording costs as much as a hundred turns, and rows that fill a turn up see nothing, leave nothing and cost
little. So a turn that fits a recording never runs eagerly: it is played there and pays rent, the doublings by
which that shape is larger. When a shape has paid as much rent as its own recording costs, it gets one.
Whatever comes, that costs at most twice what one would pay who knows it beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log2

from deepinfer.engine.turns.table import TurnShape

_PRICE = 1024.0
"""Doublings of turns that a recording costs. Seen on an H200: to run a new shape and record it takes 200 ms,
where a turn takes 1.2 to 2.3 ms, and a tenth of that longer for each doubling of its size."""
_LEAST = 1 / 16
"""Doublings that a larger shape costs at least."""


def covers(larger: TurnShape, wanted: TurnShape) -> bool:
    """Whether a turn of shape ``wanted`` can be played as one of shape ``larger``, filled up."""
    if larger.history != wanted.history or larger.drafting is not wanted.drafting:
        return False
    has_room = (
        larger.num_sequences >= wanted.num_sequences
        and larger.num_drafts >= wanted.num_drafts
        and larger.width >= wanted.width
        and larger.num_blocks >= wanted.num_blocks
        and larger.num_drafted >= wanted.num_drafted
    )
    # a budget grants everybody all, if it is large enough; no shape without one can share drafts out
    shares_alike = larger.is_shared_out or not wanted.is_shared_out
    pairs = zip(larger.entries, wanted.entries, strict=True)
    return has_room and shares_alike and all(r[1] >= w[1] and r[2] >= w[2] for r, w in pairs)


def _doublings(larger: TurnShape, wanted: TurnShape) -> float:
    """How much larger, in rows and in entries that each of them may see."""
    rows = log2(larger.num_rows / wanted.num_rows)
    pairs = zip(larger.entries, wanted.entries, strict=True)
    return rows + max((log2(r[2] / w[2]) for r, w in pairs), default=0.0)


class Covering:
    """Chooses shapes, and remembers what each has paid."""

    def __init__(self) -> None:
        """Nothing is owed."""
        self._paid: dict[TurnShape, float] = {}

    def shape_of(self, wanted: TurnShape, recorded: Iterable[TurnShape]) -> TurnShape:
        """The smallest of ``recorded`` that covers ``wanted``, which is none of them; or itself."""
        held = [shape for shape in recorded if covers(shape, wanted)]
        if not held:
            return wanted
        best = min(
            held, key=lambda shape: (_doublings(shape, wanted), shape.num_sequences, shape.num_drafted)
        )
        paid = self._paid[wanted] = self._paid.get(wanted, 0.0) + max(_doublings(best, wanted), _LEAST)
        return wanted if paid > _PRICE else best
