"""Speculation as the engine loop sees it: how many drafts a step verifies, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.api import Float32Array
from deepinfer.engine.scheduler import Share
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.drafts import Drafts, confidences_of
from deepinfer.engine.speculation.policy import DraftPolicy
from deepinfer.engine.speculation.stats import DraftStats
from deepinfer.engine.speculation.timing import Drafting, StepTiming
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.step_run import StepResult

_UNCOUNTED = 256
"""Answers that are counted together: arrays cost the same for one as for all of them."""


def _pairs(first: Int64, second: Int64) -> Int64:
    """int64 [n, 2]; stacking takes three times as long."""
    found = np.empty((len(first), 2), np.int64)
    found[:, 0], found[:, 1] = first, second
    return found


def _all_decode(shares: Items[Share]) -> bool:
    """Whether all are decoding; asked twice a step, so without a call for each."""
    for _, num_rows, _, is_complete in shares:  # a generator takes twice as long
        if not is_complete or num_rows != 1:
            return False
    return True


@dataclass
class SpeculationControl:
    """Who drafts, who decides, and who counts.

    Steps are timed from landing to landing: what a step costs is what it keeps the next one waiting for, on
    the host or on a device.

    Attributes:
        drafter, policy: these.
        block_size: most drafts of a sequence.
        clock: seconds.
    """

    drafter: Drafter
    policy: DraftPolicy
    block_size: int
    clock: Callable[[], float] = time.perf_counter
    _stats: DraftStats = field(init=False)
    _uncounted: list[tuple[int, int, Drafts]] = field(default_factory=list, init=False)
    _later: list[tuple[Int64, Float32Array]] = field(default_factory=list, init=False)
    _landed_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Nothing was drafted."""
        self._stats = DraftStats(self.block_size)

    @property
    def stats(self) -> DraftStats:
        """What came of all drafts so far."""
        self._count()
        return self._stats

    def mode(self, shares: Items[Share]) -> Drafting:
        """What a step does for drafts; contexts of prompts are always kept."""
        if _all_decode(shares):
            return self.policy.mode(len(shares))
        wanted = self.policy.mode(sum(share.is_complete for share in shares))
        if wanted is Drafting.PAUSED:
            return Drafting.WATCHING
        return wanted

    def landed_turn(
        self,
        mode: Drafting,
        num_drafts: int,
        count: Int64,
        accepted: Int64,
        verified: Int64,
        confidences: Float32Array,
        is_typical: bool,
    ) -> None:
        """A turn has ended, of sequences that all decode, by columns.

        Args:
            mode: what it did for drafts.
            num_drafts: drafts that it had rows for.
            count, accepted: int64 [n], rows of each sequence, none of one that was over before, and how many
                of its drafts were right.
            verified, confidences: int64 [r, 2] and float32 [r, B], see ``DraftStats``, of who counts.
            is_typical: see ``StepResult``.
        """
        now_s, before_s = self.clock(), self._landed_s
        if mode is Drafting.PAUSED and is_typical and self._passes(num_drafts, len(count)):
            self._stats.count_plain(len(verified))
            self._landed_s = now_s
            return
        if num_drafts:
            self._later.append((verified, confidences.copy()))
            if len(self._later) * len(verified) >= _UNCOUNTED:
                self._count()
        else:
            self._stats.count_plain(len(verified))
        is_whole = bool((count > 0).all())
        self._landed_s = now_s if is_whole else None
        if is_whole and is_typical and before_s is not None:
            self.policy.learn(
                StepTiming(
                    num_sequences=len(count),
                    num_drafts=num_drafts,
                    num_tokens=len(count) + int(accepted.sum()),
                    drafting=mode,
                    seconds=now_s - before_s,
                    verified=_pairs(count - 1, accepted) if num_drafts else (),
                )
            )

    def _passes(self, num_drafts: int, num_sequences: int) -> bool:
        """Whether a step of a pause need not be timed, see ``DraftPolicy``; all that are in it decode."""
        return num_drafts == 0 and self._landed_s is not None and self.policy.passes(num_sequences)

    def landed(self, shares: Items[Share], mode: Drafting, num_drafts: int, result: StepResult) -> None:
        """A step has ended, which had rows for ``num_drafts`` drafts."""
        now_s, before_s = self.clock(), self._landed_s
        if mode is Drafting.PAUSED and result.is_typical and self._passes(num_drafts, len(shares)):
            self._stats.count_plain(len(result.answers))
            self._landed_s = now_s
            return
        # no prompts, and nobody who had ended before
        is_whole = len(result.answers) == len(shares) and _all_decode(shares)
        if is_whole and num_drafts == 0:
            verified: tuple[tuple[int, int], ...] = ()
            self._stats.count_plain(len(shares))
        else:
            verified = self._counted(num_drafts, result)
        self._landed_s = now_s if is_whole else None
        if is_whole and result.is_typical and before_s is not None:
            timing = StepTiming(
                num_sequences=len(shares),
                num_drafts=num_drafts,
                num_tokens=len(shares) + sum(accepted for _, accepted in verified),
                drafting=mode,
                seconds=now_s - before_s,
                verified=verified,
            )
            self.policy.learn(timing)

    def _counted(self, num_drafts: int, result: StepResult) -> tuple[tuple[int, int], ...]:
        """Drafts of each decoding sequence and those accepted; must be quick without any."""
        answers = [answer for answer in result.answers if answer.share.is_decoding]
        if num_drafts == 0 or not answers:
            self._stats.count_plain(len(answers))
            return ()
        verified = tuple((answer.share.num_drafts, answer.num_accepted) for answer in answers)
        self._uncounted += [(*pair, a.verified) for pair, a in zip(verified, answers, strict=True)]
        if len(self._uncounted) >= _UNCOUNTED:
            self._count()
        return verified

    def _count(self) -> None:
        if self._uncounted:
            num_drafts, num_accepted, blocks = zip(*self._uncounted, strict=True)
            self._uncounted.clear()
            confidences = confidences_of(blocks, self.block_size)
            self._stats.count(np.array([num_drafts, num_accepted]).T, confidences)
        if self._later:
            verified, sure = zip(*self._later, strict=True)
            self._later.clear()
            self._stats.count(np.concatenate(verified), np.concatenate(sure))
