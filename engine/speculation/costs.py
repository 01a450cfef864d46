"""How long decode steps take, by number of drafts, as measured while they run.

What was never measured, or not for a long time, counts as no dearer than the next smaller number, so it is
tried where that would pay, and then known. Wrong figures cost speed and no bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median

from deepinfer.engine.speculation.timing import Drafting, StepTiming

KEPT = 9
"""Timings of a size; their median is believed."""
_KEPT_PLAIN = 5
ENOUGH = 3
MEMORY = 4000
"""Steps after which a size that was not met again is tried anew."""
WITHOUT_CONTEXTS = 0.95
"""Of a step that keeps the contexts of drafts, what it takes without them, if that was never timed."""


@lru_cache(1024)
def size_class(size: int) -> int:
    """Sizes that share their timings: each up to 16, then steps of a sixteenth to an eighth."""
    if size <= 16:
        return size
    grain = 1 << (size.bit_length() - 4)
    return -(-size // grain) * grain


def rising(known: Items[tuple[int, float]], wanted: Items[int]) -> list[float]:
    """Of the seconds of ``known`` sizes, for each wanted one the most that one no larger takes, 0 if none."""
    found = []
    for size in wanted:
        most = 0.0
        for met, seconds in known:
            if met <= size and seconds > most:
                most = seconds
        found.append(most)
    return found


@dataclass
class StepCosts:
    """Seconds of steps of one kind by size class, from the last few of each."""

    kept: int = KEPT
    _timings: dict[int, deque[float]] = field(default_factory=dict)
    _medians: dict[int, float] = field(default_factory=dict)
    _last: dict[int, int] = field(default_factory=dict)
    _clock: int = 0

    def learn(self, size: int, seconds: float) -> None:
        """A step of this size took so long."""
        self._clock += 1
        size = size_class(size)
        timings = self._timings.get(size)
        if timings is None:
            timings = self._timings[size] = deque(maxlen=self.kept)
        timings.append(seconds)
        self._last[size] = self._clock
        if len(timings) >= ENOUGH:
            self._medians[size] = median(timings)

    def curve(self, sizes: Items[int]) -> list[float]:
        """Seconds of steps of these sizes, never falling with the size; 0 if all is new."""
        known = [(met, seconds) for met, seconds in self._medians.items() if self._is_recent(met)]
        return rising(known, [size_class(size) for size in sizes])

    def at(self, size: int) -> float:
        """Seconds of steps of exactly this size class; 0 if it was not met often enough."""
        return self._medians.get(size_class(size), 0.0)

    def is_known(self, size: int) -> bool:
        """Whether steps of about this size were met lately, and often enough."""
        size = size_class(size)
        return size in self._medians and self._is_recent(size)

    def forget(self) -> None:
        """What was timed so far was the mood of the machine."""
        self._timings.clear()
        self._medians.clear()
        self._last.clear()

    def _is_recent(self, size: int) -> bool:
        return self._clock - self._last[size] < MEMORY


@dataclass
class BatchCosts:
    """Seconds of the steps of one batch size.

    Attributes:
        drafting: of steps that draft for the next one, by the drafts that they verify.
        plain, watching: of those without, which do or do not keep the contexts of drafts.
        plain_s: seconds of a step of plain decoding; 0 if none was met yet.
    """

    drafting: StepCosts = field(default_factory=StepCosts)
    plain: StepCosts = field(default_factory=lambda: StepCosts(_KEPT_PLAIN))
    watching: StepCosts = field(default_factory=lambda: StepCosts(_KEPT_PLAIN))
    plain_s: float = 0.0

    def learn(self, timing: StepTiming) -> StepTiming:
        """A step took so long; returns what it is to count as."""
        if timing.drafting is Drafting.ON:
            self.drafting.learn(timing.num_drafts, timing.seconds)
        else:
            kind = self.plain if timing.drafting is Drafting.PAUSED else self.watching
            kind.learn(0, timing.seconds)
            self.plain_s = self._plain_s()
        return timing

    def interrupt(self) -> None:
        """Steps of other batch sizes came between."""

    def _plain_s(self) -> float:
        plain, watching = self.plain.at(0), self.watching.at(0)
        if plain and watching:
            return min(plain, watching)  # either may have been timed when the machine was busy
        return plain or WITHOUT_CONTEXTS * watching

    @property
    def surely_plain_s(self) -> float:
        """Seconds that plain decoding is judged by."""
        return self.plain_s

    @property
    def hope(self) -> float:
        """By what factor drafts may be better beside plain steps than it seems."""
        return 1.0
