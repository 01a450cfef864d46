"""``costs`` of a single sequence: what steps cost beside each other, by number of drafts.

Its numbers of drafts differ by hundredths, less than a shared machine changes its speed from one second to
the next. So steps are compared with their neighbours alone (``pace``).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace

from deepinfer.engine.speculation.costs import ENOUGH, MEMORY, WITHOUT_CONTEXTS, size_class
from deepinfer.engine.speculation.pace import Pace
from deepinfer.engine.speculation.timing import Drafting, StepTiming

_SURE = 2.0
"""Standard errors of a comparison that are put down to the machine."""


@dataclass
class PairedSteps:
    """Seconds of steps of one kind by size class, on a machine of even speed.

    Attributes:
        mode: what these steps do for drafts.
        pace: what all steps of a batch size are compared by.
    """

    mode: Drafting = Drafting.ON
    pace: Pace = field(default_factory=Pace)
    _met: dict[int, int] = field(default_factory=dict)
    _last: dict[int, int] = field(default_factory=dict)
    _clock: int = 0

    def learn(self, size: int, seconds: float) -> None:
        """A step of this size took so long."""
        self._clock += 1
        size = size_class(size)
        self.pace.learn((self.mode, size), seconds)
        self._met[size] = self._met.get(size, 0) + 1
        self._last[size] = self._clock

    def curve(self, sizes: Items[int]) -> list[float]:
        """Seconds of steps of these sizes, never falling with the size; 0 if all is new."""
        known = [(met, self.at(met)) for met in self._met if self.is_known(met)]
        wanted = [size_class(size) for size in sizes]
        if wanted and min(wanted) > 0:
            # nothing to verify has the first step behind a pause, which may be played in a larger recording
            known = [(met, seconds) for met, seconds in known if met > 0]
        return [max((s for met, s in known if met <= size), default=0.0) for size in wanted]

    def at(self, size: int) -> float:
        """Seconds of steps of exactly this size class; 0 if it was not met often enough."""
        size = size_class(size)
        return self.pace.cost((self.mode, size)) if self._met.get(size, 0) >= ENOUGH else 0.0

    def is_known(self, size: int) -> bool:
        """Whether steps of about this size were met lately, and often enough."""
        size = size_class(size)
        return self._met.get(size, 0) >= ENOUGH and self._clock - self._last[size] < MEMORY

    @property
    def sizes(self) -> list[int]:
        """Size classes that were met."""
        return list(self._met)

    def comparisons(self, one: int, other: int) -> int:
        """How often steps of the two sizes were neighbours."""
        return self.pace.comparisons((self.mode, size_class(one)), (self.mode, size_class(other)))

    def forget(self) -> None:
        """What was timed so far was the mood of the machine, or of what runs on it."""
        for size in self._met:
            self.pace.forget((self.mode, size))
        self._met.clear()
        self._last.clear()


class PairedCosts:
    """Seconds of the steps of a single sequence; see ``BatchCosts``.

    Attributes:
        drafting: of steps that draft for the next one, by the drafts that they verify.
        plain, watching: of those without, which do or do not keep the contexts of drafts.
        surely_plain_s: seconds that plain decoding does not exceed beside drafts; 0 if none was met yet.
    """

    def __init__(self) -> None:
        """Nothing was timed."""
        self.pace, self.surely_plain_s = Pace(), 0.0
        self.drafting = PairedSteps(Drafting.ON, self.pace)
        self.plain = PairedSteps(Drafting.PAUSED, self.pace)
        self.watching = PairedSteps(Drafting.WATCHING, self.pace)

    def interrupt(self) -> None:
        """Steps of other batch sizes came between."""
        self.pace.interrupt()

    def learn(self, timing: StepTiming) -> StepTiming:
        """A step took so long; returns what its kind takes at even speed."""
        modes = {Drafting.ON: self.drafting, Drafting.PAUSED: self.plain, Drafting.WATCHING: self.watching}
        size = timing.num_drafts if timing.drafting is Drafting.ON else 0
        modes[timing.drafting].learn(size, timing.seconds)
        if not self.pace.is_settled:
            self.surely_plain_s = self._surely_plain_s()
        return replace(timing, seconds=self.pace.cost((timing.drafting, size_class(size))))

    @property
    def plain_s(self) -> float:
        """Seconds of a step of plain decoding; 0 if none was met yet."""
        plain, watching = self.plain.at(0), self.watching.at(0)
        if plain and watching:
            return min(plain, watching)
        return plain or WITHOUT_CONTEXTS * watching

    def _surely_plain_s(self) -> float:
        """What keeps contexts takes longer than what does not, so the lower bound of both holds."""
        guessed = 1.0 if self.plain.at(0) else WITHOUT_CONTEXTS
        met = [
            (costs.at(0) * share, self._doubt(costs.mode))
            for costs, share in ((self.plain, 1.0), (self.watching, guessed))
            if costs.at(0)
        ]
        return min((seconds * (1 + _SURE * doubt) for seconds, doubt in met), default=0.0)

    @property
    def hope(self) -> float:
        """By what factor drafts may be better beside plain steps than it seems."""
        return 1 + _SURE * min(self._doubt(Drafting.PAUSED), self._doubt(Drafting.WATCHING))

    def _doubt(self, mode: Drafting) -> float:
        drafted = [(Drafting.ON, size) for size in self.drafting.sizes]
        return self.pace.doubt([(mode, 0)], drafted)
