"""Speculation as the engine loop sees it: how many drafts a step verifies, and what came of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.scheduler import Share
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.drafts import confidences_of
from deepinfer.engine.speculation.policy import DraftPolicy
from deepinfer.engine.speculation.stats import DraftStats
from deepinfer.engine.speculation.timing import Drafting, StepTiming, nothing_verified
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.step_run import StepResult


@dataclass
class SpeculationControl:
    """Who drafts, who decides, and who counts.

    Steps are timed from landing to landing: what a step costs is what it keeps the next one waiting for, on
    the host or on a device.

    Attributes:
        drafter, policy, stats: these.
        clock: seconds.
    """

    drafter: Drafter
    policy: DraftPolicy
    stats: DraftStats
    clock: Callable[[], float] = time.perf_counter
    _landed_s: float | None = field(default=None, init=False)

    def mode(self, shares: Items[Share]) -> Drafting:
        """What a step does for drafts; contexts of prompts are always kept."""
        wanted = self.policy.mode(sum(share.is_complete for share in shares))
        if wanted is Drafting.PAUSED and not all(share.is_decoding for share in shares):
            return Drafting.WATCHING
        return wanted

    def landed(self, shares: Items[Share], mode: Drafting, num_drafts: int, result: StepResult) -> None:
        """A step has ended, which had rows for ``num_drafts`` drafts."""
        now_s, before_s = self.clock(), self._landed_s
        verified = self._counted(num_drafts, result)
        # no prompts, and nobody who had ended before
        is_whole = len(result.answers) == len(shares) and all(share.is_decoding for share in shares)
        self._landed_s = now_s if is_whole else None
        if is_whole and result.is_typical and before_s is not None:
            timing = StepTiming(
                num_sequences=len(shares),
                num_drafts=num_drafts,
                num_tokens=len(shares) + int(verified[:, 1].sum()),
                drafting=mode,
                seconds=now_s - before_s,
                verified=verified,
            )
            self.policy.learn(timing)

    def _counted(self, num_drafts: int, result: StepResult) -> Int64:
        """Drafts of each decoding sequence and those accepted, int64 [n, 2]; must be quick without any."""
        answers = [answer for answer in result.answers if answer.share.is_decoding]
        if num_drafts == 0 or not answers:
            self.stats.count_plain(len(answers))
            return nothing_verified()
        verified = np.array([(answer.share.num_drafts, answer.num_accepted) for answer in answers])
        self.stats.count(verified, confidences_of([a.verified for a in answers], self.stats.block_size))
        return verified
