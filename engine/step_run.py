"""One step on the model: forward pass, prompt scores, sampling, acceptance of drafts, the next drafts.

Everything here may run while the scheduler plans the step after it, so it reads sequences and changes none.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from deepinfer.engine.batch import Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.drawn_rows import DrawnRows, draw
from deepinfer.engine.logprobs import HiddenRows, fill_sheets
from deepinfer.engine.model.transformer import Hidden, Transformer
from deepinfer.engine.sampler import Sampled
from deepinfer.engine.scheduler import Share
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.drafter import Drafter, DraftPoint
from deepinfer.engine.speculation.drafts import NO_DRAFTS, Drafts
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_graphs import StepGraphs
from deepinfer.engine.step_records import boundaries
from deepinfer.engine.stopping import is_stop_token
from deepinfer.engine.torch_threads import torch_threads_of
from deepinfer.engine.transfer import moved


class Answer(NamedTuple):
    """What a step found for one sequence; a tuple, since steps of many sequences wait for the host.

    Attributes:
        share: the sequence and its rows.
        token_ids: accepted drafts and one more, cut behind a stop token.
        first_row: their first row in ``StepResult.sampled``.
        num_accepted: drafts that were what the sampler chose, also behind a stop token.
        is_over: whether the last token ends the sequence, by itself or by its number.
        verified: the drafts that the step looked at, and those it had no row for.
        drafts: what may come next.
    """

    share: Share
    token_ids: tuple[int, ...]
    first_row: int
    num_accepted: int
    is_over: bool
    verified: Drafts = NO_DRAFTS
    drafts: Drafts = NO_DRAFTS


@dataclass(frozen=True)
class Boundary:
    """The end of a cache block that a step computed.

    Attributes:
        sequence: whose.
        boundary: a multiple of 128, one past its position.
        rings: what the rings held there, see ``snapshots``; views, to be copied.
    """

    sequence: Sequence
    boundary: int
    rings: dict[int, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Results of a step.

    Attributes:
        boundaries: ends of blocks among its rows, also among rows that are taken back.
        answers: of the sequences whose known tokens are all computed, in packed order.
        sampled: one row per accepted draft and one more for every answer, answer by answer.
        logits: float32 [rows of ``sampled``, V], what they were drawn from.
        is_typical: false for a step that was also compiled or recorded: its seconds say nothing.
    """

    answers: tuple[Answer, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    sampled: Sampled | None = None
    logits: torch.Tensor | None = None
    is_typical: bool = True


@dataclass(frozen=True)
class StepRun:
    """A step that is ready to run; ``num_drafted`` are the drafts it makes of each sequence, if it drafts."""

    model: Transformer
    drafter: Drafter | None
    shares: tuple[Share, ...]
    step: Step
    view: StepView
    drafting: Drafting = Drafting.ON
    num_drafted: int = 0
    graphs: StepGraphs | None = None

    def __call__(self) -> StepResult:
        """Run it."""
        with torch_threads_of(self.model.ops):
            return self._run()

    def _run(self) -> StepResult:
        reads_features = (
            self.drafter is not None and self.drafting is not Drafting.PAUSED and self.drafter.reads_features
        )
        hidden = self._forward(reads_features)
        if self.drafter is not None and hidden.features is not None:
            self.drafter.remember(hidden.features, self.step, self.view)
        self._score_prompts(hidden.normed)
        complete = [i for i, share in enumerate(self.shares) if share.is_complete]
        saved = self._boundaries()
        if not complete:
            return StepResult(boundaries=saved)
        drawn = self._draw(complete, hidden.normed)
        shares = [self.shares[i] for i in complete]
        if self.drafter is None or self.drafting is not Drafting.ON:
            sampled = drawn.describe(self.model.ops)  # in one copy with the tokens
            answers = self._answers(shares, drawn.tokens())
        else:
            # drafts may be made while the rest goes on, up to the plan of the next step
            answers = self._answers(shares, drawn.tokens())
            answers = with_drafts(self.drafter, answers, self.view.caches, self.num_drafted)
            sampled = drawn.describe(self.model.ops)
        return StepResult(
            answers=tuple(answers),
            boundaries=saved,
            sampled=sampled,
            logits=drawn.logits,
        )

    def _forward(self, with_features: bool) -> Hidden:
        if self.graphs is not None:
            return self.graphs.forward(self.step, self.view, with_features)
        return self.model.forward(self.step, self.view, with_features)

    def _score_prompts(self, normed: torch.Tensor) -> None:
        """Score the rows of the step that predict a prompt token somebody asked about."""
        sheets = [share.sequence.sheet for share in self.shares]
        if not any(sheets):
            return
        rows = self.step.plan.decoder
        ends = np.array([0 if sheet is None else len(sheet.token_ids) - 1 for sheet in sheets])
        picked = np.flatnonzero(rows.positions < ends[rows.chunk])
        fill_sheets(self.model, HiddenRows(normed, rows.chunk, rows.positions), sheets, picked)

    def _draw(self, complete: Items[int], normed: torch.Tensor) -> DrawnRows:
        """Draw a token for the last known row and every drafted row of the given shares; keep what stands."""
        shares = [self.shares[i] for i in complete]
        if sum([1 + share.num_drafts for share in shares]) < len(normed):  # else all of them, in their order
            ends = np.searchsorted(self.step.plan.decoder.chunk, complete, side="right")  # sorted by chunk
            last = [np.arange(end - 1 - s.num_drafts, end) for end, s in zip(ends, shares, strict=True)]
            normed = normed[moved(torch.from_numpy(np.concatenate(last)), self.model.ops.device)]
        return draw(self.model.ops, self.model.logits(normed), shares)

    def _answers(self, shares: Items[Share], tokens: Items[list[int]]) -> list[Answer]:
        answers, first = [], 0
        for share, mine in zip(shares, tokens, strict=True):
            answers.append(answer_of(share, mine, first, self.model.config.eos_token_id))
            first += len(mine)
        return answers

    def _boundaries(self) -> tuple[Boundary, ...]:
        """Ends of cache blocks among the rows, with what the view has saved there."""
        rows = self.step.plan.encoder
        ends = boundaries(rows)
        places = zip(rows.chunk[ends].tolist(), rows.positions[ends].tolist(), strict=True)
        return tuple(
            Boundary(
                self.shares[chunk].sequence,
                position + 1,
                {layer: saved[number] for layer, saved in self.view.snapshots.items()},
            )
            for number, (chunk, position) in enumerate(places)
        )


def answer_of(
    share: Share, tokens: list[int], first_row: int, eos_token_id: int, drafts: Drafts = NO_DRAFTS
) -> Answer:
    """The answer whose rows that stand drew ``tokens``, cut behind a stop token."""
    sequence, num_accepted = share.sequence, len(tokens) - 1
    params, is_over = sequence.request.params, False
    if params.stop_token_ids or eos_token_id in tokens:  # seldom, and asked for every sequence of a step
        for number, token in enumerate(tokens):
            if is_stop_token(params, token, eos_token_id):
                tokens, is_over = tokens[: number + 1], True
                break
    is_over = is_over or sequence.num_tokens + len(tokens) >= sequence.max_tokens
    return Answer(share, tuple(tokens), first_row, num_accepted, is_over, sequence.drafts, drafts)


def with_drafts(drafter: Drafter, answers: list[Answer], caches: Caches, num_drafts: int) -> list[Answer]:
    """Draft so many tokens behind every sequence that goes on for more than one."""
    points, drafted = [], []
    for number, answer in enumerate(answers):
        sequence = answer.share.sequence
        num_tokens = sequence.num_tokens + len(answer.token_ids)
        is_token = answer.token_ids[-1] >= 0  # else its logits are not finite, which ends the run
        if is_token and not answer.is_over and num_tokens + 1 < sequence.max_tokens:
            points.append(DraftPoint(sequence, answer.token_ids[-1], num_tokens - 1))
            drafted.append(number)
    if points:
        found = drafter.propose(points, caches, num_drafts)
        for number, drafts in zip(drafted, found, strict=True):
            answers[number] = answers[number]._replace(drafts=drafts)
    return answers
