"""When to stop drafting for a while: measured tokens a second with drafts against those without.

Counted by batch size, since drafts pay for few sequences first. How many tokens a step gives varies from
step to step far more than what it costs, so a loss is believed only when luck cannot explain it any more, and
after plain decoding was timed once more: the machine may have become slower meanwhile. Then drafting pauses
for a while that doubles each time, up to a limit. A trial goes on keeping the contexts of drafts, a pause
does not: what it skips is unknown to the drafter afterwards.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from math import sqrt
from statistics import fmean, pstdev

from deepinfer.engine.speculation.timing import StepTiming

_WINDOW, _FEWEST, _FRESH = 128, 24, 12
"""Drafting steps that a judgement looks at, at most and at least, and those since plain steps were timed."""
_LUCK = 1.5
"""Standard errors of the mean number of tokens that are put down to luck."""
_ENOUGH = 0.99
"""Share of the speed of plain decoding below which drafting loses."""
TRIAL = 5
"""Plain steps that show what plain decoding takes."""
_FIRST_PAUSE, _LONGEST_PAUSE = 512, 8192


class Drafting(Enum):
    """What a step does for drafts: make them, keep their contexts only, or nothing."""

    ON = "on"
    WATCHING = "watching"
    PAUSED = "paused"


@dataclass
class _Case:
    """What is known of one batch size; tokens and seconds are those of a sequence in a step."""

    num_plain_left: int = TRIAL
    is_paused: bool = False
    is_suspected: bool = False
    next_pause: int = _FIRST_PAUSE
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    def loses(self, plain_s: float) -> bool:
        """Whether plain steps of ``plain_s`` would have been faster, however unlucky the drafts were."""
        luck = _LUCK * pstdev(self.tokens) / sqrt(len(self.tokens))
        # a step that had to be recorded, or waited for the machine, says nothing
        cut = len(self.seconds) // 3
        seconds = fmean(sorted(self.seconds)[cut : len(self.seconds) - cut])
        return (fmean(self.tokens) + luck) * plain_s < _ENOUGH * seconds


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
        case.tokens.append(timing.num_tokens / timing.num_sequences)
        case.seconds.append(timing.run_s + timing.draft_s)
        if len(case.tokens) < _FEWEST or len(case.seconds) < _FRESH:
            return
        if plain_s == 0:
            case.num_plain_left = TRIAL
        elif not case.loses(plain_s):
            case.is_suspected, case.next_pause = False, _FIRST_PAUSE
        elif not case.is_suspected:
            case.is_suspected, case.num_plain_left = True, TRIAL
            case.seconds.clear()
        else:
            case.num_plain_left, case.is_paused, case.is_suspected = case.next_pause, True, False
            case.next_pause = min(2 * case.next_pause, _LONGEST_PAUSE)
            case.tokens.clear()
            case.seconds.clear()

    def _case(self, num_sequences: int) -> _Case:
        return self._cases.setdefault(num_sequences.bit_length(), _Case())
