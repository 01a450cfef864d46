"""A step on its way: started, and ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepinfer.engine.scheduler import Share
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_run import Answer, StepResult


@dataclass(frozen=True)
class Landed:
    """A step that has ended, without what it found for sequences that were ended meanwhile."""

    flight: InFlight
    result: StepResult
    live: tuple[Share, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class InFlight:
    """A step that has started.

    A turn leaves on the device where its sequences stand, so the next turn can follow before it has landed.

    Attributes:
        shares: its sequences.
        num_drafts: drafts that it has rows for.
        drafting: what it does for the drafts of the next one.
        num_drafted: how many it makes of each sequence, if it drafts.
        wait: gives its result.
        is_turn: whether it is one.
    """

    shares: tuple[Share, ...]
    num_drafts: int
    drafting: Drafting
    num_drafted: int
    wait: Callable[[], StepResult]
    is_turn: bool

    def land(self) -> Landed:
        """Wait for the result, and make known to the sequences what it says of them."""
        try:
            result = self.wait()
        finally:
            for share in self.shares:
                share.sequence.num_in_flight -= share.num_rows
                share.sequence.num_drafts_in_flight -= share.num_drafts
        live = tuple(share for share in self.shares if not share.sequence.finish_reason)
        answers = tuple(answer for answer in result.answers if not answer.share.sequence.finish_reason)
        for share in live:
            share.sequence.num_computed += share.num_rows
        for answer in answers:
            answer.share.sequence.take(answer.token_ids, answer.is_over)
            answer.share.sequence.drafts = answer.drafts
        if self.drafting is Drafting.PAUSED:
            for share in live:
                share.sequence.draft_from = share.sequence.num_computed
        return Landed(self, result, live, answers)
