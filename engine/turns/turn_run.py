"""A turn as the engine loop sees it: launched, and later asked for its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from deepinfer.engine.api import Float32Array, Int32Array
from deepinfer.engine.asynchrony import Launchable
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.snapshots import saved_rings
from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.sampler import Sampled, top_tokens
from deepinfer.engine.scheduler import Share
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.drafts import NO_DRAFTS, Drafts
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_plan import BLOCK_TOKENS, Int64
from deepinfer.engine.step_run import Answer, Boundary, StepResult, answer_of, with_drafts
from deepinfer.engine.torch_threads import torch_threads_of
from deepinfer.engine.transfer import fetched
from deepinfer.engine.turns.outcome import Outcome
from deepinfer.engine.turns.recordings import TurnRecordings
from deepinfer.engine.turns.table import TurnShape
from deepinfer.kernels.interface import Ops


@dataclass(frozen=True, kw_only=True)
class TurnRun(Launchable):
    """A turn that is ready to run.

    Attributes:
        recordings: what plays it.
        ops: kernel set of the model.
        caches: where block ends are saved from.
        eos_token_id: end token.
        shares: its sequences, in the order of the table.
        shape, table: what is played.
        drafter, num_drafted: who drafts behind the answers, if that is not done in the turn, and how much.
        num_snapshot_layers: layers whose rings a later prompt resumes from; drafts too if ``with_drafts``.
        keeps_logits: whether somebody wants to see the logits after the next turn has started.
    """

    recordings: TurnRecordings
    ops: Ops
    caches: Caches
    eos_token_id: int
    shares: tuple[Share, ...]
    shape: TurnShape
    table: Int64
    drafter: Drafter | None
    num_drafted: int
    num_snapshot_layers: int
    with_drafts: bool
    keeps_logits: bool

    def __call__(self) -> StepResult:
        """Run it and wait."""
        return self.launch()()

    def launch(self) -> Callable[[], StepResult]:
        """Start it; what comes back waits for the result."""
        with torch_threads_of(self.ops):
            played = self.recordings.play(self.shape, self.table)
        num_unplayed = self.recordings.num_unplayed

        def finish() -> StepResult:
            outcome = played.wait()
            # while the turn behind this one was recorded, nobody could look
            is_typical = played.is_typical and self.recordings.num_unplayed == num_unplayed
            logits = played.logits.clone() if self.keeps_logits else played.logits
            return TurnResult(self, outcome, logits, is_typical)

        return finish

    def told(self, outcome: Outcome, logits: torch.Tensor) -> tuple[tuple[Answer, ...], Sampled]:
        """What the turn found for every sequence, with the drafts that the host has to ask for."""
        answers = self._answers(outcome)
        sampled = self._sampled(outcome, logits, answers)
        if self.drafter is not None and self.shape.drafting is Drafting.ON:
            with torch_threads_of(self.ops):
                answers = with_drafts(self.drafter, answers, self.caches, self.num_drafted)
        return tuple(answers), sampled

    def _answers(self, outcome: Outcome) -> list[Answer]:
        ids, counts, accepted = outcome.ids.tolist(), outcome.count.tolist(), outcome.accepted.tolist()
        has_drafts = outcome.drafts.shape[1] > 0
        answers, first, eos, ahead = [], 0, self.eos_token_id, NO_DRAFTS
        for number, share in enumerate(self.shares):
            count = counts[number]
            if count == 0:  # it ended by its length one turn before, which was not known then
                continue
            row = first if self.shape.width > 1 else number
            if count - 1 != share[2]:
                share = share.with_drafts(count - 1)
            if has_drafts:
                ahead = Drafts(outcome.drafts[number], outcome.confidences[number])
            answers.append(answer_of(share, ids[row : row + accepted[number] + 1], row, eos, ahead))
            first += count
        return answers

    def _sampled(self, outcome: Outcome, logits: torch.Tensor, answers: Items[Answer]) -> Sampled:
        """What was drawn, of all rows; only those of the answers are given out, and they must be sound."""
        is_sound = np.isfinite(outcome.raw) & (outcome.ids >= 0)
        if not is_sound.all():
            for row, position in _rows(answers):
                if not is_sound[row]:
                    raise NonFiniteError(
                        f"row {row}: the logits for position {position} are not finite; "
                        "weights or kernels are damaged, no token can be chosen"
                    )
        top_ids, top_logprobs = self._tops(logits, answers)
        return Sampled(
            token_ids=outcome.ids,
            raw_logprobs=outcome.raw,
            processed_logprobs=outcome.processed,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
        )

    def _tops(
        self, logits: torch.Tensor, answers: Items[Answer]
    ) -> tuple[list[Int32Array | None], list[Float32Array | None]]:
        """The most likely tokens, where they were asked for."""
        size = len(logits)
        ids: list[Int32Array | None] = [None] * size
        logprobs: list[Float32Array | None] = [None] * size
        wanted = {}
        for answer in answers:
            count = answer.share.sequence.request.params.num_logprobs
            if count:
                for row in range(answer.first_row, answer.first_row + answer.num_accepted + 1):
                    wanted[row] = top_tokens(self.ops, logits[row], count)
        if wanted:
            parts = fetched(*(part for top in wanted.values() for part in top))
            for place, row in enumerate(wanted):
                ids[row] = parts[2 * place].numpy().astype(np.int32)
                logprobs[row] = parts[2 * place + 1].numpy()
        return ids, logprobs

    def boundaries(self, outcome: Outcome) -> tuple[Boundary, ...]:
        """Ends of cache blocks among the rows that stand, with what the rings hold there."""
        if self.num_snapshot_layers == 0:
            return ()
        size = len(self.shares)
        start, last = outcome.start[:size], (outcome.start + outcome.accepted)[:size]
        ends = (start // BLOCK_TOKENS + 1) * BLOCK_TOKENS
        found = np.flatnonzero((ends <= last + 1) & (outcome.count[:size] > 0))
        if len(found) == 0:
            return ()
        sequences = [self.shares[number].sequence for number in found]
        slots = np.array([sequence.slot for sequence in sequences])
        rings = saved_rings(self.caches, slots, ends[found], self.num_snapshot_layers, self.with_drafts)
        return tuple(
            Boundary(sequence, int(ends[number]), {layer: saved[place] for layer, saved in rings.items()})
            for place, (number, sequence) in enumerate(zip(found, sequences, strict=True))
        )


class TurnResult(StepResult):
    """See ``StepResult``; what is told of single sequences is made when somebody asks for it.

    That must be before the next turn of the shape writes over the logits, and before the one behind that
    over what rings hold at block ends.
    """

    def __init__(self, run: TurnRun, outcome: Outcome, logits: torch.Tensor, is_typical: bool) -> None:
        """``outcome`` of ``run``, and what it was drawn from."""
        # a frozen dataclass has no other way in
        vars(self).update(_run=run, _outcome=outcome, logits=logits, is_typical=is_typical)

    @property
    def outcome(self) -> Outcome:
        """Arrays of the turn, rows and sequences in the order of its shares."""
        found: Outcome = vars(self)["_outcome"]
        return found

    @property
    def width(self) -> int:
        """Most rows of a sequence."""
        found: int = vars(self)["_run"].shape.width
        return found

    @cached_property
    def _told(self) -> tuple[tuple[Answer, ...], Sampled]:
        found: tuple[tuple[Answer, ...], Sampled] = vars(self)["_run"].told(self.outcome, self.logits)
        return found

    @property
    def answers(self) -> tuple[Answer, ...]:
        """See ``StepResult``."""
        return self._told[0]

    @property
    def sampled(self) -> Sampled:
        """See ``StepResult``."""
        return self._told[1]

    @cached_property
    def boundaries(self) -> tuple[Boundary, ...]:
        """See ``StepResult``."""
        found: tuple[Boundary, ...] = vars(self)["_run"].boundaries(self.outcome)
        return found


def _rows(answers: Items[Answer]) -> Iterator[tuple[int, int]]:
    """Rows that stand, with the positions of their tokens."""
    for answer in answers:
        for number in range(answer.num_accepted + 1):
            yield answer.first_row + number, answer.share.sequence.num_tokens + number
