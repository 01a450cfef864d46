"""One step on the model: forward pass, prompt scores, sampling, acceptance of drafts, the next drafts.

Everything here may run while the scheduler plans the step after it, so it reads sequences and changes none.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch

from deepinfer.engine.batch import Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.logprobs import HiddenRows, fill_sheets
from deepinfer.engine.model.transformer import Hidden, Transformer
from deepinfer.engine.sampler import Sampled, describe_rows, draw_rows
from deepinfer.engine.scheduler import Share
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.acceptance import emitted_rows
from deepinfer.engine.speculation.drafter import Drafter, DraftPoint
from deepinfer.engine.speculation.drafts import NO_DRAFTS, Drafts
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_graphs import StepGraphs
from deepinfer.engine.step_records import boundaries
from deepinfer.engine.stopping import is_stop_token
from deepinfer.engine.torch_threads import torch_threads_of
from deepinfer.engine.transfer import fetched, moved


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
        sampled, rows, logits = self._sample(complete, hidden.normed)
        answers = self._answers([self.shares[i] for i in complete], sampled, rows)
        if self.drafter is not None and self.drafting is Drafting.ON:
            answers = with_drafts(self.drafter, answers, self.view.caches, self.num_drafted)
        return StepResult(
            answers=tuple(answers),
            boundaries=saved,
            sampled=sampled,
            logits=logits,
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

    def _sample(
        self, complete: Items[int], normed: torch.Tensor
    ) -> tuple[Sampled, list[range], torch.Tensor]:
        """Draw a token for the last known row and every drafted row of the given shares; keep what stands."""
        shares, device = [self.shares[i] for i in complete], self.model.ops.device
        if sum([1 + share.num_drafts for share in shares]) < len(normed):  # else all of them, in their order
            ends = np.searchsorted(self.step.plan.decoder.chunk, complete, side="right")  # sorted by chunk
            last = [np.arange(end - 1 - s.num_drafts, end) for end, s in zip(ends, shares, strict=True)]
            normed = normed[moved(torch.from_numpy(np.concatenate(last)), device)]
        logits = self.model.logits(normed)
        owners = [(s.sequence, j) for s in shares for j in range(1 + s.num_drafts)]
        params = [sequence.request.params for sequence, _ in owners]
        positions = [sequence.num_tokens + j for sequence, j in owners]
        ids, processed = draw_rows(
            self.model.ops,
            logits,
            params,
            [sequence.seed for sequence, _ in owners],
            positions,
            [sequence.sample_index for sequence, _ in owners],
        )
        rows = [range(row, row + 1) for row in range(len(owners))]
        if len(owners) > len(shares):  # else nothing has to be waited for yet
            drafts = [s.sequence.drafts.tokens[: s.num_drafts].tolist() for s in shares]
            rows = emitted_rows(fetched(ids)[0].tolist(), drafts)
        kept = list(chain.from_iterable(rows))
        if len(kept) < len(owners):
            # of one sequence the first rows stand, which takes no copy
            picked = slice(len(kept)) if len(shares) == 1 else moved(torch.tensor(kept), device)
            logits, ids, processed = logits[picked], ids[picked], processed[picked]
            params, positions = [params[row] for row in kept], [positions[row] for row in kept]
        sampled = describe_rows(self.model.ops, logits, ids, processed, params, positions)
        return sampled, rows, logits

    def _answers(self, shares: Items[Share], sampled: Sampled, rows: Items[range]) -> list[Answer]:
        answers, first = [], 0
        for share, mine in zip(shares, rows, strict=True):
            tokens = sampled.token_ids[first : first + len(mine)].tolist()
            answers.append(answer_of(share, tokens, first, self.model.config.eos_token_id))
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
        if not answer.is_over and num_tokens + 1 < sequence.max_tokens:
            points.append(DraftPoint(sequence, answer.token_ids[-1], num_tokens - 1))
            drafted.append(number)
    if points:
        found = drafter.propose(points, caches, num_drafts)
        for number, drafts in zip(drafted, found, strict=True):
            answers[number] = answers[number]._replace(drafts=drafts)
    return answers
