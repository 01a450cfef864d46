"""When to stop drafting for a while: measured tokens a second with drafts against those without.

Counted by batch size, since drafts pay for few sequences first. A trial of some plain steps comes before the
first judgement; after a loss drafting pauses for a while that doubles each time, up to a limit. A trial goes
on keeping the contexts of drafts, a pause does not: what it skips is unknown to the drafter afterwards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from deepinfer.engine.speculation.timing import StepTiming

_WINDOW = 24
"""Drafting steps that a judgement looks at."""
_TRIAL = 4
"""Plain steps that show what plain decoding takes."""
_FIRST_PAUSE, _LONGEST_PAUSE = 256, 8192


class Drafting(Enum):
    """What a step does for drafts: make them, keep their contexts only, or nothing."""

    ON = "on"
    WATCHING = "watching"
    PAUSED = "paused"


@dataclass
class _Case:
    """What is known of one batch size."""

    num_plain_left: int = _TRIAL
    is_paused: bool = False
    next_pause: int = _FIRST_PAUSE
    tokens: deque[int] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))


@dataclass
class Pauses:
    """Decides step by step whether to draft."""

    _cases: dict[int, _Case] = field(default_factory=dict)

    def mode(self, num_sequences: int) -> Drafting:
        """What a step of so many sequences should do."""
        case = self._case(num_sequences)
        if case.num_plain_left == 0:
            return Drafting.ON
        return Drafting.PAUSED if case.is_paused else Drafting.WATCHING

    def plain_step(self, num_sequences: int) -> None:
        """A step ran without drafting."""
        case = self._case(num_sequences)
        case.num_plain_left = max(0, case.num_plain_left - 1)
        case.is_paused &= case.num_plain_left > 0

    def drafting_step(self, timing: StepTiming, plain_s: float) -> None:
        """A step ran with drafting; a plain one takes ``plain_s``, 0 if that is not known."""
        case = self._case(timing.num_sequences)
        case.tokens.append(timing.num_tokens)
        case.seconds.append(timing.run_s + timing.draft_s)
        if len(case.tokens) < _WINDOW:
            return
        # of the seconds the median: a step that had to be recorded, or waited for somebody, says nothing
        step_s = median(case.seconds) * len(case.seconds)
        if sum(case.tokens) * plain_s < timing.num_sequences * step_s * 0.99 and plain_s > 0:
            case.num_plain_left, case.is_paused = case.next_pause, True
            case.next_pause = min(2 * case.next_pause, _LONGEST_PAUSE)
            case.tokens.clear()
            case.seconds.clear()
        elif plain_s == 0:
            case.num_plain_left = _TRIAL
        else:
            case.next_pause = _FIRST_PAUSE

    def _case(self, num_sequences: int) -> _Case:
        return self._cases.setdefault(num_sequences.bit_length(), _Case())
