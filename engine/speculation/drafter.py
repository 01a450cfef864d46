"""Where drafts come from: the model's own draft stages, or a continuation that is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch

from deepinfer.engine.batch import Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.model.draft import Anchors, Draft
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.drafts import Drafts, Found
from deepinfer.engine.transfer import fetched, moved
from deepinfer.kernels.draft_operands import DraftOutput


@dataclass(frozen=True)
class DraftPoint:
    """A sequence whose next token is known and not yet computed.

    Attributes:
        sequence: the sequence; its slot holds the context.
        golden: the known token.
        position: its position.
    """

    sequence: Sequence
    golden: int
    position: int


class Drafter(Protocol):
    """A source of drafts. What it proposes moves speed and no bit: a wrong draft is a wasted row."""

    @property
    def reads_features(self) -> bool:
        """Whether it wants the features of every computed row, and rings to keep them in."""

    def remember(self, features: torch.Tensor, step: Step, view: StepView) -> None:
        """Keep what drafting needs of the rows that the decoder computed: features [T', targets * D]."""

    def propose(self, points: Items[DraftPoint], caches: Caches, num_drafts: int) -> list[Drafts]:
        """Draft so many tokens behind each point; there is at least one."""

    @property
    def drafts_in_turn(self) -> bool:
        """Whether ``block`` drafts within a turn; if not, the host asks ``propose`` after it."""

    def block(self, anchors: Anchors, caches: Caches, num_drafts: int) -> DraftOutput:
        """``propose`` of so many drafts as work that may be recorded: it depends on tensors alone."""


class DraftingPass:
    """One pass over the blocks of several sequences, perhaps still on its way."""

    def __init__(self, drafted: Callable[[], DraftOutput]) -> None:
        """``drafted`` waits for it."""
        self._drafted = drafted
        self._found: Found | None = None

    def end(self) -> Found:
        """Wait for it: tokens and confidences of all."""
        if self._found is None:
            out = self._drafted()
            tokens, confidences = fetched(out.tokens, out.confidences)
            self._found = tokens.numpy()[:, 1:], confidences.numpy()
        return self._found

    def of(self, number: int) -> Found:
        """What it drafted for one sequence."""
        tokens, confidences = self.end()
        return tokens[number], confidences[number]


class ModelDrafter:
    """DSpark: the draft stages of the checkpoint (model.md section 7)."""

    reads_features = True
    drafts_in_turn = True

    def __init__(self, draft: Draft, rule: PrefillRule) -> None:
        """``rule`` says which context rows of a truncated prompt exist."""
        self._draft, self._rule = draft, rule
        self._latest: DraftingPass | None = None

    def remember(self, features: torch.Tensor, step: Step, view: StepView) -> None:
        """Write the context latents of all rows; those of rejected rows are overwritten before use."""
        if self._latest is not None:
            self._latest.end()  # reads what is written over
        self._draft.write_context(features, step.decoder, view)

    def propose(self, points: Items[DraftPoint], caches: Caches, num_drafts: int) -> list[Drafts]:
        """One pass over all blocks together, which may run beside what the host does next."""
        positions = [point.position for point in points]
        self._draft.target.reserve(max(positions) + num_drafts)
        slots = [point.sequence.slot for point in points]
        low = [self._first_context(point.sequence) for point in points]
        table = np.array([[point.golden for point in points], positions, slots, low], np.int64)
        anchors = Anchors(*torch.from_numpy(table).unbind())
        here = moved(anchors, self._draft.ops.device)
        begun = self._latest = DraftingPass(self._draft.propose(here, caches, num_drafts=num_drafts))
        return [Drafts.coming(num_drafts, partial(begun.of, row)) for row in range(len(points))]

    def block(self, anchors: Anchors, caches: Caches, num_drafts: int) -> DraftOutput:
        """See ``Drafter``."""
        return self._draft.propose(anchors, caches, num_drafts=num_drafts)()

    def _first_context(self, sequence: Sequence) -> int:
        return max(self._rule.low(sequence.prompt_length), sequence.draft_from)


class KnownContinuation:
    """Drafts from a text that is already known: a quotation, an edit, or an upper bound in a benchmark.

    With the true continuation every draft is accepted, which shows what verification itself costs.
    """

    reads_features = False
    drafts_in_turn = False

    def __init__(self, continuations: Mapping[tuple[str, int], Items[int]]) -> None:
        """``continuations[request_id, sample_index]`` are the expected output tokens."""
        self._texts = {key: np.array(ids, np.int64) for key, ids in continuations.items()}

    def remember(self, features: torch.Tensor, step: Step, view: StepView) -> None:
        """Nothing to keep."""

    def propose(self, points: Items[DraftPoint], caches: Caches, num_drafts: int) -> list[Drafts]:
        """What the text says comes next, sure of it; token 0 without confidence past its end."""
        tokens = np.zeros((len(points), num_drafts), np.int64)
        confidences = np.zeros((len(points), num_drafts), np.float32)
        for row, point in enumerate(points):
            known = self._texts.get(point.sequence.key, np.empty(0, np.int64))
            first = point.position + 1 - point.sequence.prompt_length
            ahead = known[first : first + num_drafts]
            tokens[row, : len(ahead)] = ahead
            confidences[row, : len(ahead)] = 1.0
        return [Drafts(*row) for row in zip(tokens, confidences, strict=True)]

    def block(self, anchors: Anchors, caches: Caches, num_drafts: int) -> DraftOutput:
        """The text is known to the host alone."""
        raise NotImplementedError
