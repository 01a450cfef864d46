"""Verifies the drafts that pay: as many as give the most tokens a second, the likeliest first.

A draft is reached and accepted with the product of the confidences up to it. So a step with the d likeliest
drafts gives n tokens and the sum of those products, in the time that steps of n + d rows have taken lately;
the best d is the budget, and ``Ops.verify_budget`` shares it out. Where even the best does not beat plain
steps, nothing is drafted for a while.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import torch

from deepinfer.engine.api import Float32Array
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.buckets import MAX_ROWS, draft_totals, sequence_bucket
from deepinfer.engine.speculation.costs import StepCosts
from deepinfer.engine.speculation.pauses import TRIAL, Drafting, Pauses
from deepinfer.engine.speculation.timing import StepTiming
from deepinfer.engine.speculation.unseen import Unseen
from deepinfer.engine.transfer import fetched, moved
from deepinfer.kernels.interface import Ops

_GUESS = 0.5
"""Confidence of a draft that nobody has seen."""


class ConfidenceDrafts:
    """See ``DraftPolicy``."""

    def __init__(self, ops: Ops, num_drafts: int) -> None:
        """``num_drafts``: most drafts of a sequence."""
        self._ops, self._most = ops, num_drafts
        self._plain, self._verifying, self._drafting = StepCosts(TRIAL), StepCosts(), StepCosts()
        self._pauses = Pauses()

    def shares(self, sequences: Items[Sequence], room: int) -> list[int]:
        """See ``DraftPolicy``."""
        caps = np.array([min(self._most, s.num_useful_drafts) for s in sequences], np.int64)
        if room <= 0 or not caps.any():
            return [0] * len(sequences)
        confidences = np.zeros((len(sequences), self._most), np.float32)
        for row, sequence in enumerate(sequences):
            given = sequence.drafts.confidences[: self._most]
            confidences[row, : len(given)] = given
        total = min(room, self._budget(confidences, caps))
        asked = {0: torch.from_numpy(confidences), 1: torch.from_numpy(caps)}
        here = moved(asked, self._ops.device)
        (shares,) = fetched(self._ops.verify_budget(here[0], here[1], total))
        given_out: list[int] = shares.tolist()
        return given_out

    def _budget(self, confidences: Float32Array, caps: np.ndarray) -> int:
        """The number of drafts with the most expected tokens a second; the smallest of equals."""
        num_sequences, tokens = len(caps), self._expected(confidences, caps)
        seconds = self._verifying.curve(num_sequences, len(tokens))
        seconds = seconds + self._drafting.curve(num_sequences, 1)[0]
        return int(np.argmax(tokens / np.maximum(seconds, 1e-9)))

    def unseen(self, sequences: Items[Sequence]) -> Unseen | None:
        """A budget that fills a bucket of rows; who gets what of it is decided where the drafts are known.

        How sure they are is guessed from the drafts before them.
        """
        count = len(sequences)
        caps = np.full(count, self._most)
        confidences = np.full((count, self._most), _GUESS, np.float32)
        for row, sequence in enumerate(sequences):
            if sequence.drafts.size:
                confidences[row] = sequence.drafts.confidences[: self._most]
        held = sequence_bucket(count)
        totals = np.array(draft_totals(count, min(count * self._most, MAX_ROWS - held)))
        tokens = self._expected(confidences, caps)[totals]
        seconds = self._verifying.curve(held, int(totals[-1]) + 1)[totals]
        # what was never met is tried step by step, as long as it pays: each size has to be recorded first
        is_known = np.array([self._verifying.is_known(held + total) for total in totals.tolist()])
        if not is_known[0]:
            return Unseen(0)
        worth = np.where(is_known, tokens / np.maximum(seconds, 1e-9), 0.0)
        best = int(np.argmax(worth))
        if best + 1 < len(totals) and not is_known[best + 1]:
            best += 1
        best = int(totals[best])
        return Unseen(self._most, best) if best else Unseen(0)

    def _expected(self, confidences: Float32Array, caps: np.ndarray) -> np.ndarray:
        """Tokens of a step that verifies the 0, 1, 2, ... likeliest drafts."""
        survival = np.multiply.accumulate(confidences, axis=1)
        ranked = np.sort(survival[np.arange(survival.shape[1]) < caps[:, None]])[::-1]
        return np.asarray(len(caps) + np.concatenate([[0.0], np.cumsum(ranked, dtype=np.float64)]))

    def mode(self, num_sequences: int) -> Drafting:
        """See ``DraftPolicy``."""
        return self._pauses.mode(num_sequences)

    def learn(self, timing: StepTiming) -> None:
        """See ``DraftPolicy``."""
        if not timing.is_drafting:
            self._plain.learn(timing.num_rows, timing.run_s)
            self._pauses.plain_step(timing.num_sequences)
            return
        self._verifying.learn(timing.num_rows, timing.run_s)
        self._drafting.learn(timing.num_sequences, timing.draft_s)
        plain_s = float(self._plain.curve(timing.num_sequences, 1)[0])
        self._pauses.drafting_step(timing, plain_s)
