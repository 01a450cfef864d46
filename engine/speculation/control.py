"""Speculation as the engine loop sees it: how many drafts a step verifies, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from deepinfer.engine.scheduler import Share
from deepinfer.engine.speculation.drafter import Drafter
from deepinfer.engine.speculation.pauses import Drafting
from deepinfer.engine.speculation.policy import DraftPolicy
from deepinfer.engine.speculation.stats import DraftStats
from deepinfer.engine.speculation.timing import StepTiming
from deepinfer.engine.step_run import StepResult


@dataclass(frozen=True)
class SpeculationControl:
    """Who drafts, who decides, and who counts."""

    drafter: Drafter
    policy: DraftPolicy
    stats: DraftStats

    def mode(self, shares: Items[Share]) -> Drafting:
        """What a step does for drafts; contexts of prompts are always kept."""
        wanted = self.policy.mode(sum(share.is_complete for share in shares))
        if wanted is Drafting.PAUSED and not all(share.is_decoding for share in shares):
            return Drafting.WATCHING
        return wanted

    def landed(self, shares: Items[Share], mode: Drafting, result: StepResult) -> None:
        """A step has ended."""
        for answer in result.answers:
            if answer.share.is_decoding:
                self.stats.count(answer.share.num_drafts, answer.num_accepted, answer.verified.confidences)
        if result.is_typical and all(share.is_decoding for share in shares):
            timing = StepTiming(
                num_sequences=len(shares),
                num_rows=result.num_rows or sum(1 + share.num_drafts for share in shares),
                num_tokens=sum(len(answer.token_ids) for answer in result.answers),
                is_drafting=mode is Drafting.ON,
                run_s=result.run_s,
                draft_s=result.draft_s,
            )
            self.policy.learn(timing)
