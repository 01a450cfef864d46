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
        has_ended = False
        try:
            result = self.wait()
        finally:
            for sequence, num_rows, num_drafts, _ in self.shares:
                sequence.num_in_flight -= num_rows
                sequence.num_drafts_in_flight -= num_drafts
                if sequence.finish_reason:
                    has_ended = True
        live, answers = self.shares, result.answers
        _ = result.boundaries  # the next turns write over what it is made of
        if has_ended:
            live = tuple(share for share in live if not share.sequence.finish_reason)
            answers = tuple(answer for answer in answers if not answer.share.sequence.finish_reason)
        for sequence, num_rows, _, _ in live:
            sequence.num_computed += num_rows
        for answer in answers:
            sequence = answer.share.sequence
            sequence.take(answer.token_ids, answer.is_over)
            sequence.drafts = answer.drafts
        if self.drafting is Drafting.PAUSED:
            for share in live:
                share.sequence.draft_from = share.sequence.num_computed
        return Landed(self, result, live, answers)
