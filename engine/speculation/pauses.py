"""When to stop drafting for a while: measured tokens a second with drafts against those without.

Counted by batch size, since drafts pay for few sequences first. How many tokens a step gives varies from
step to step far more than what it costs, so a loss is believed only when luck cannot explain it; with many
sequences a handful of steps says so. Then drafting pauses. The first steps of a pause time plain decoding
anew, for the machine may have become slower meanwhile: if drafts win after all, it ends there. Else it lasts,
twice as long each time, up to a limit; its last steps keep contexts, which the others do not, so that the
drafts that are tried afterwards are those of a running engine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean

from deepinfer.engine.speculation.buckets import sequence_bucket
from deepinfer.engine.speculation.timing import Drafting, StepTiming

_WINDOW, _SETTLED, _FEWEST = 512, 64, 4
"""Steps with drafts that a judgement looks at, at most; those after which a win is believed; at least."""
_LUCK = 2.0
"""Standard errors of the mean number of tokens that are put down to luck."""
_SPREAD = 0.5
"""Standard deviation of the tokens of one sequence in a step, at least."""
_ENOUGH = 0.99
"""Share of the speed of plain decoding below which drafting loses."""
_WORTH = 1.02
"""What drafting has to win with several sequences once it is settled: they end at different times, and those
that are left take nearly as long a step as all of them."""
_CLEAR, _FEWEST_CLEAR = 1.1, 8
"""What drafting has to win, over so many steps, unless true plain steps were timed: a pause does that. With
several sequences it is always made: steps that keep contexts come a few at a time between drafted ones, and
may wait for a host that these keep busy (on an H200 with 16 of them a guess of 0.67 ms for 0.53 hid it)."""
TRIAL = 5
"""Plain steps that show what plain decoding takes."""
_WATCHED = 32
"""Steps at the end of a pause that keep contexts."""
_FIRST_PAUSE, _LONGEST_PAUSE = 512, 8192
_FIRST_RETRIAL, _LONGEST_RETRIAL, _RETRIAL = 48, 3072, 3
"""Steps with drafts after which plain ones are timed again, for the first ones of a process are slow; steps
of that."""
_LONGEST_UNCLEAR = 192
"""While drafting wins less than ``_CLEAR``: the host may have been slow for the seconds in which plain steps
were timed, and a plain step that looks a few hundredths too dear hides a loss."""
_TIMED = 32
"""Of so many steps of a pause one is timed, behind the trial that it begins with."""
_ALIKE = 8
"""Batches at least so large are judged like the nearest one that was met, up to twice as large."""


@dataclass(slots=True)
class _Case:
    """What is known of one batch size; tokens and seconds are those of a sequence in a step.

    Attributes:
        left: steps without drafts to come.
        watched: of these, how many of the last ones keep contexts.
        is_paused: whether they are a pause.
        next_pause: how long the next one lasts.
        until_trial, next_trial: steps with drafts until plain ones are timed again, and from then on.
        tokens, seconds: of the last steps with drafts; total, squares: sums over ``tokens``.
    """

    left: int = TRIAL
    watched: int = TRIAL
    is_paused: bool = False
    num_paused: int = 0
    next_pause: int = _FIRST_PAUSE
    until_trial: int = _FIRST_RETRIAL
    next_trial: int = 4 * _FIRST_RETRIAL
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_SETTLED))
    total: float = 0.0
    squares: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """A step with drafts; sums are kept, for this is asked in every step."""
        if len(self.tokens) == _WINDOW:
            oldest = self.tokens[0]
            self.total, self.squares = self.total - oldest, self.squares - oldest * oldest
        self.tokens.append(tokens)
        self.seconds.append(seconds)
        self.total, self.squares = self.total + tokens, self.squares + tokens * tokens

    def forget(self) -> None:
        """Begin again to count."""
        self.tokens.clear()
        self.seconds.clear()
        self.total = self.squares = 0.0

    @property
    def is_due(self) -> bool:
        """Whether to judge now: once settled, a step in eight is enough."""
        return len(self.tokens) < _SETTLED or self.until_trial % 8 == 0

    @property
    def has_lost(self) -> bool:
        """Whether drafting lost when it was last looked at."""
        return self.next_pause > _FIRST_PAUSE

    @property
    def has_won(self) -> bool:
        """Whether drafts have been made for a while, and still are."""
        return self.left == 0 and len(self.tokens) >= _SETTLED

    def loses(self, plain_s: float, num_sequences: int) -> bool:
        """Whether plain steps of ``plain_s`` would have been faster, however unlucky the drafts were."""
        if len(self.tokens) < _FEWEST:
            return False
        count, mean = len(self.tokens), self.total / len(self.tokens)
        spread = sqrt(max(0.0, self.squares / count - mean * mean))
        luck = _LUCK * max(spread, _SPREAD / sqrt(num_sequences)) / sqrt(count)
        # a step that waited for the machine says nothing
        cut = len(self.seconds) // 3
        seconds = fmean(sorted(self.seconds)[cut : len(self.seconds) - cut])
        gain = mean * plain_s / seconds
        if num_sequences > 1 and count >= _SETTLED and gain < _WORTH:
            return True
        return gain + luck * plain_s / seconds < _ENOUGH

    def is_unclear(self, plain_s: float) -> bool:
        """Whether drafting wins by so little that a wrong guess of ``plain_s`` may hide a loss."""
        if len(self.tokens) < _FEWEST_CLEAR:
            return False
        return self.total / len(self.tokens) * plain_s < _CLEAR * fmean(
            sorted(self.seconds)[: len(self.seconds) // 2 + 1]
        )

    def pause(self) -> None:
        self.left, self.watched, self.is_paused, self.num_paused = self.next_pause, _WATCHED, True, 0

    def resume_after(self, steps: int) -> None:
        self.left = self.watched = steps
        self.is_paused = False


@dataclass
class Pauses:
    """Decides step by step whether to draft."""

    _cases: dict[int, _Case] = field(default_factory=dict)
    _by_count: dict[int, _Case] = field(default_factory=dict)

    def mode(self, num_sequences: int) -> Drafting:
        """What a step of so many sequences should do."""
        case = self._by_count.get(num_sequences) or self._case(num_sequences)
        if case.left == 0:
            return Drafting.ON
        return Drafting.WATCHING if case.left <= case.watched else Drafting.PAUSED

    def passes(self, num_sequences: int) -> bool:
        """Counts a plain step of a pause, if nothing has to be learned from it: most of them only pass."""
        case = self._by_count.get(num_sequences) or self._case(num_sequences)
        left = case.left
        if left % _TIMED == 0 or left <= case.watched or case.num_paused < TRIAL or not case.is_paused:
            return False
        case.left = left - 1
        return True

    def learn(self, timing: StepTiming, plain_s: float, is_trying: bool, is_sure: bool = True) -> bool:
        """A step has ended; says whether a pause has, so that drafts are tried anew.

        ``plain_s`` are the seconds of a plain one, 0 if none was met, and guessed if not ``is_sure``;
        ``is_trying`` says that a number of drafts is being tried that may yet pay.
        """
        case = self._case(timing.num_sequences)
        if timing.drafting is not Drafting.ON:
            return self._plain_step(case, timing, plain_s)
        if timing.num_drafts:  # the first step behind a pause has nothing to verify
            case.add(timing.num_tokens / timing.num_sequences, timing.seconds)
            case.until_trial -= 1
            if case.left or is_trying or not case.is_due:
                return False
            is_met = timing.num_sequences > 1 and len(case.tokens) >= _FEWEST_CLEAR
            is_guessed = not is_sure and (is_met or case.is_unclear(plain_s))
            if plain_s and (is_guessed or case.loses(plain_s, timing.num_sequences)):
                case.pause()
            elif case.until_trial <= 0:
                longest = _LONGEST_UNCLEAR if case.is_unclear(plain_s) else _LONGEST_RETRIAL
                case.until_trial = min(case.next_trial, longest)
                case.next_trial = 4 * case.until_trial
                case.resume_after(_RETRIAL)
            elif len(case.tokens) >= _SETTLED:
                case.next_pause = _FIRST_PAUSE
        return False

    def _plain_step(self, case: _Case, timing: StepTiming, plain_s: float) -> bool:
        case.left = max(0, case.left - 1)
        if case.left == 0 and case.is_paused:
            case.is_paused = False
            return True
        if not case.is_paused or timing.drafting is not Drafting.PAUSED:
            return False
        case.num_paused += 1
        if case.num_paused == TRIAL and case.tokens:
            if case.loses(plain_s, timing.num_sequences):
                case.next_pause = min(2 * case.next_pause, _LONGEST_PAUSE)
                case.forget()
            else:
                case.resume_after(TRIAL)
        return False

    def _case(self, num_sequences: int) -> _Case:
        case = self._by_count.get(num_sequences)
        if case is None:
            case = self._by_count[num_sequences] = self._case_of(sequence_bucket(num_sequences))
        return case

    def _case_of(self, key: int) -> _Case:
        """``key`` is a bucket; what was met before decides how it begins."""
        if key not in self._cases:
            # losing with fewer sequences, drafts lose with more
            like = [k for k in self._cases if k < key or (key >= _ALIKE and k <= 2 * key)]
            more = [k for k in self._cases if k > key]
            case = self._cases[key] = _Case()
            if like and self._cases[min(like, key=lambda k: abs(k - key))].has_lost:
                case.pause()
                case.next_pause = 2 * _FIRST_PAUSE
            elif more and self._cases[min(more)].has_won:
                case.left = 0  # what pays with more sequences pays with fewer
        return self._cases[key]
