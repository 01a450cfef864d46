"""Verifies the drafts that pay: as many as give the most tokens a second, the likeliest first.

A draft is reached and accepted with the product of the confidences up to it. So a step with the d likeliest
drafts gives n tokens and the sum of those products, in the time that steps of n sequences and d drafts have
taken lately; the best d is the budget, and ``Ops.verify_budget`` shares it out. Numbers of drafts are tried
from the smallest one on, as long as they would pay if they took no longer than the one before. Where even the
best does not beat plain steps, nothing is drafted for a while (``pauses``).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import accumulate
from operator import mul

import numpy as np
import torch

from deepinfer.engine.api import Float32Array
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.acceptance_profile import AcceptanceProfile
from deepinfer.engine.speculation.buckets import MAX_ROWS, draft_totals, sequence_bucket
from deepinfer.engine.speculation.contenders import Contenders
from deepinfer.engine.speculation.costs import BatchCosts
from deepinfer.engine.speculation.drafts import confidences_of
from deepinfer.engine.speculation.paired_costs import PairedCosts
from deepinfer.engine.speculation.pauses import Pauses
from deepinfer.engine.speculation.timing import Drafting, StepTiming
from deepinfer.engine.speculation.unseen import Unseen
from deepinfer.engine.transfer import fetched, moved
from deepinfer.kernels.interface import Ops

_LOYALTY = 1.02
"""What another number of drafts must promise more than the present one: a change may have to be recorded."""

_KEPT_STEPS = 4
"""Steps for which a single sequence drafts as many: with one, a device waits for a host that thinks."""


class ConfidenceDrafts:
    """See ``DraftPolicy``."""

    def __init__(self, ops: Ops, num_drafts: int) -> None:
        """``num_drafts``: most drafts of a sequence."""
        self._ops, self._most = ops, num_drafts
        self._costs: dict[int, BatchCosts] = {}
        self._alone = PairedCosts()
        self._contenders = Contenders()
        self._latest: BatchCosts | PairedCosts = self._alone
        self._latest_count = 1
        self._profile = AcceptanceProfile(num_drafts)
        self._pauses = Pauses()
        self._chosen: dict[int, int] = {}
        self._by_count: dict[int, BatchCosts] = {}
        self._single, self._num_kept = num_drafts, 0  # drafts of one sequence, for so many steps more

    def shares(self, sequences: Items[Sequence], room: int) -> list[int]:
        """See ``DraftPolicy``."""
        caps = [min(self._most, sequence.num_useful_drafts) for sequence in sequences]
        if room <= 0 or not any(caps):
            return [0] * len(sequences)
        totals = list(draft_totals(len(sequences), min(room, sum(caps)), self._most))
        if len(sequences) == 1:  # the likeliest drafts of one block are its first ones
            drafts = sequences[0].drafts
            if drafts.size == totals[-1] and self._contenders.is_trying(drafts.size):
                return [drafts.size]
            tokens = _expected_of_one(drafts.confidences.tolist())
            return [self._best(1, totals, [tokens[total] for total in totals])]
        confidences = confidences_of([s.drafts for s in sequences], self._most)
        bounds = np.array(caps, np.int64)
        total = self._best(len(sequences), totals, _expected(confidences, bounds, totals))
        asked = {0: torch.from_numpy(confidences), 1: torch.from_numpy(bounds)}
        here = moved(asked, self._ops.device)
        (shares,) = fetched(self._ops.verify_budget(here[0], here[1], total))
        given_out: list[int] = shares.tolist()
        return given_out

    def unseen(self, sequences: Items[Sequence], num_drafted: int) -> Unseen:
        """A budget that fills a bucket of rows; who gets what of it is decided where the drafts are known.

        How sure they are is guessed from the drafts before them. One sequence has all that were drafted.
        """
        if len(sequences) == 1 and self.mode(1) is Drafting.ON:
            return Unseen(num_drafted)
        blocks = [sequence.drafts for sequence in sequences]
        is_drafted = np.array([block.size > 0 for block in blocks])
        return self.unseen_of(confidences_of(blocks, self._most), is_drafted, num_drafted)

    def unseen_of(self, confidences: Float32Array, is_drafted: np.ndarray, num_drafted: int) -> Unseen:
        """See ``DraftPolicy``."""
        count = len(confidences)
        if self.mode(count) is not Drafting.ON:
            return Unseen(0)  # drafts that are left over would make a shape of its own
        if count == 1:
            return Unseen(num_drafted)
        totals = self._totals(count)
        if not totals:
            return Unseen(0)
        chances, confidences = self._profile.chances(), confidences[:, : self._most]
        if not is_drafted.all():
            confidences = np.where(is_drafted[:, None], confidences, chances)
        # drafts are less often right than they are sure: what was accepted so far corrects the mean
        mean = np.add.reduce(confidences, 0) / np.float32(count)
        scale = np.minimum(chances / np.maximum(mean, 1e-3), 1.0)
        total = self._stable(count, totals, _expected(confidences * scale, None, totals))
        return Unseen(self._most, total) if total else Unseen(0)

    def block(self, num_sequences: int) -> int:
        """See ``DraftPolicy``; only a single sequence is known to have no use for the rest of a block."""
        if num_sequences > 1:
            return self._most
        if self._num_kept == 0:
            totals, tokens = self._totals(1), _expected_of_one(self._profile.chances().tolist())
            given = [tokens[total] for total in totals]
            self._single = self._or_contender(self._stable(1, totals, given), totals, given) or self._most
            self._num_kept = _KEPT_STEPS
        self._num_kept -= 1
        return self._single

    def _totals(self, count: int) -> Items[int]:
        """Numbers of drafts that may be made for so many sequences, but none."""
        return draft_totals(count, MAX_ROWS - sequence_bucket(count), self._most)[1:]

    def _stable(self, count: int, totals: Items[int], tokens: Items[float]) -> int:
        """The best of ``totals``, which give so many tokens, kept until another one is clearly better."""
        if not totals:
            return 0
        best, key = self._best(count, totals, tokens), sequence_bucket(count)
        kept, known = self._chosen.get(key, best), self._costs_of(count).drafting
        if kept == best:
            if not known.is_known(best):
                self._chosen[key] = best
            return best
        if kept in totals and known.is_known(kept) and known.is_known(best):
            seconds = known.curve([kept, best])
            here, there = tokens[totals.index(kept)], tokens[totals.index(best)]
            if here * seconds[1] * _LOYALTY >= there * seconds[0]:
                return kept
        self._chosen[key] = best
        return best

    def _or_contender(self, best: int, totals: Items[int], tokens: Items[float]) -> int:
        """``best`` for a single sequence, or a number that may be better and is tried in its place."""
        if self._contenders.waits(best):
            return best
        known = self._alone.drafting
        met = [total for total in totals if known.is_known(total)]
        gained = [tokens[totals.index(total)] for total in met]
        speeds = [gain / taken for gain, taken in zip(gained, known.curve(met), strict=True)]
        compared = [known.comparisons(best, total) for total in met]
        return self._contenders.instead_of(best, met, speeds, compared)

    def _best(self, count: int, totals: Items[int], tokens: Items[float]) -> int:
        """Of ``totals`` the one with the most ``tokens`` a second; the smallest of equals, or one to try.

        What was never met takes no longer than the next smaller number, as far as is known, nor less than a
        plain step.
        """
        costs = self._costs_of(count)
        plain_s, drafting = costs.plain_s, costs.drafting
        least_s = max(plain_s, 1e-9)
        speed = [
            gained / (curve_s if curve_s > least_s else least_s)
            for gained, curve_s in zip(tokens, drafting.curve(totals), strict=True)
        ]
        known = [total == 0 or drafting.is_known(total) for total in totals]
        best, fastest = 0, 0.0
        for place, is_known in enumerate(known):
            if is_known and speed[place] > fastest:
                best, fastest = place, speed[place]
        ahead = best + 1 if any(known) else 0
        if ahead < len(totals) and not known[ahead]:
            is_better_than_plain = plain_s == 0 or speed[ahead] * costs.hope > count / plain_s
            if not known[best] or (speed[ahead] > speed[best] and is_better_than_plain):
                best = ahead
        return totals[best]

    def mode(self, num_sequences: int) -> Drafting:
        """See ``DraftPolicy``."""
        return self._pauses.mode(num_sequences)

    def passes(self, num_sequences: int) -> bool:
        """See ``DraftPolicy``."""
        return num_sequences == self._latest_count and self._pauses.passes(num_sequences)

    def learn(self, timing: StepTiming) -> None:
        """See ``DraftPolicy``."""
        costs = self._costs_of(timing.num_sequences)
        if costs is not self._latest:
            costs.interrupt()
            self._latest = costs
        self._latest_count = timing.num_sequences
        timing = costs.learn(timing)
        self._profile.learn(timing.verified)
        is_trying = is_sure = False  # nobody asks where nothing is drafted
        if timing.drafting is Drafting.ON:
            chosen = self._chosen.get(sequence_bucket(timing.num_sequences), timing.num_drafts)
            is_trying = not costs.drafting.is_known(chosen)
            is_sure = costs.plain.at(0) > 0
        if self._pauses.learn(timing, costs.surely_plain_s, is_trying, is_sure):
            # what steps took before the pause may have been the machine's mood
            costs.drafting.forget()
            self._num_kept = 0
            self._chosen.pop(sequence_bucket(timing.num_sequences), None)

    def _costs_of(self, num_sequences: int) -> BatchCosts | PairedCosts:
        if num_sequences == 1:
            return self._alone
        costs = self._by_count.get(num_sequences)
        if costs is None:
            costs = self._costs.setdefault(sequence_bucket(num_sequences), BatchCosts())
            self._by_count[num_sequences] = costs
        return costs


def _expected_of_one(confidences: Items[float]) -> list[float]:
    """Tokens of a step of one sequence that verifies 0, 1, 2, ... drafts."""
    survival = accumulate(confidences, mul)
    return list(accumulate(survival, initial=1.0))


def _expected(confidences: Float32Array, caps: np.ndarray | None, totals: Items[int]) -> list[float]:
    """Tokens of steps that verify so many of the likeliest drafts.

    Args:
        confidences: float32 [R, B].
        caps: int64 [R], most drafts of each sequence, None for all of them.
        totals: of each step, as many as all ``caps`` at most.
    """
    survival = np.multiply.accumulate(confidences, axis=1)
    if caps is not None:
        survival = survival[np.arange(survival.shape[1]) < caps[:, None]]
    ranked = np.sort(survival, axis=None)[::-1]
    gained = np.add.accumulate(ranked, dtype=np.float64)
    return [len(confidences) + (float(gained[total - 1]) if total else 0.0) for total in totals]
