"""``costs`` of a single sequence: what steps cost beside each other, by number of drafts.

Its numbers of drafts differ by hundredths, less than a shared machine changes its speed from one second to
the next. So steps are compared with their neighbours alone (``pace``).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from deepinfer.engine.speculation.costs import ENOUGH, MEMORY, WITHOUT_CONTEXTS, rising, size_class
from deepinfer.engine.speculation.pace import Pace
from deepinfer.engine.speculation.timing import Drafting, StepTiming

_SURE = 2.0
"""Standard errors of a comparison that are put down to the machine."""


@dataclass
class PairedSteps:
    """Seconds of steps of one kind by size class, on a machine of even speed.

    Most steps change none of them, so what is known is kept for as long as ``pace`` has the same version.

    Attributes:
        mode: what these steps do for drafts.
        pace: what all steps of a batch size are compared by.
    """

    mode: Drafting = Drafting.ON
    pace: Pace = field(default_factory=Pace)
    _met: dict[int, int] = field(default_factory=dict)
    _last: dict[int, int] = field(default_factory=dict)
    _clock: int = 0
    _known: dict[int, float] = field(default_factory=dict)
    _version: int = -1
    _until: int = 0  # when the first of what is known will be too old

    def learn(self, size: int, seconds: float) -> None:
        """A step of this size took so long."""
        self._clock += 1
        size = size_class(size)
        self.pace.learn((self.mode, size), seconds)
        met = self._met[size] = self._met.get(size, 0) + 1
        if met == ENOUGH or (met > ENOUGH and self._clock - self._last[size] >= MEMORY):
            self.pace.version += 1
        self._last[size] = self._clock

    def curve(self, sizes: Items[int]) -> list[float]:
        """Seconds of steps of these sizes, never falling with the size; 0 if all is new."""
        known = self.known.items()
        wanted = [size_class(size) for size in sizes]
        if wanted and min(wanted) > 0 and 0 in self._met:
            # nothing to verify has the first step behind a pause, which may be played in a larger recording
            return rising([(met, seconds) for met, seconds in known if met > 0], wanted)
        return rising(list(known), wanted)

    @property
    def known(self) -> dict[int, float]:
        """Seconds by size class, of those that were met lately, and often enough; not to be changed."""
        if self._version != self.pace.version or self._clock >= self._until:
            lasts = {size: self._last[size] for size, met in self._met.items() if met >= ENOUGH}
            recent = {size: last for size, last in lasts.items() if self._clock - last < MEMORY}
            self._known = {size: self.pace.cost((self.mode, size)) for size in recent}
            self._version, self._until = self.pace.version, min(recent.values(), default=0) + MEMORY
            if not recent:
                self._until = self._clock + MEMORY
        return self._known

    def at(self, size: int) -> float:
        """Seconds of steps of exactly this size class; 0 if it was not met often enough."""
        size = size_class(size)
        return self.pace.cost((self.mode, size)) if self._met.get(size, 0) >= ENOUGH else 0.0

    def is_known(self, size: int) -> bool:
        """Whether steps of about this size were met lately, and often enough."""
        return size_class(size) in self.known

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
            self.pace.forget((self.mode, size))  # its version is another one then
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
        self._plain_s, self._version = 0.0, -1
        self._counts: dict[Drafting, int] = {}
        self.drafting = PairedSteps(Drafting.ON, self.pace)
        self.plain = PairedSteps(Drafting.PAUSED, self.pace)
        self.watching = PairedSteps(Drafting.WATCHING, self.pace)

    def interrupt(self) -> None:
        """Steps of other batch sizes came between."""
        self.pace.interrupt()

    def learn(self, timing: StepTiming) -> StepTiming:
        """A step took so long; returns what its kind takes at even speed."""
        drafting, size = timing.drafting, 0
        if drafting is Drafting.ON:
            size = timing.num_drafts
            self.drafting.learn(size, timing.seconds)
        elif drafting is Drafting.PAUSED:
            self.plain.learn(0, timing.seconds)
        else:
            self.watching.learn(0, timing.seconds)
        if not self.pace.is_settled:
            self.surely_plain_s = self._surely_plain_s()
        return timing._replace(seconds=self.pace.cost((drafting, size_class(size))))

    @property
    def plain_s(self) -> float:
        """Seconds of a step of plain decoding; 0 if none was met yet."""
        self._look()
        return self._plain_s

    def _look(self) -> None:
        """Bring up to date what is kept for as long as ``pace`` has the same version."""
        if self._version == self.pace.version:
            return
        self._version = self.pace.version
        plain, watching = self.plain.at(0), self.watching.at(0)
        self._plain_s = plain or WITHOUT_CONTEXTS * watching
        if plain and watching:
            self._plain_s = min(plain, watching)
        drafted = [(Drafting.ON, size) for size in self.drafting.sizes]
        for mode in (Drafting.PAUSED, Drafting.WATCHING):
            self._counts[mode] = sum(self.pace.comparisons((mode, 0), other) for other in drafted)

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
        self._look()
        return self.pace.doubt(self._counts[mode])
