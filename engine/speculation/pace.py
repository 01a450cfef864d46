"""What steps of different kinds cost beside each other, on a machine that changes its speed.

A shared machine is half as fast for seconds, and a tenth faster a moment later: the seconds of two kinds that
were timed at different times say more of the machine than of the kinds. What lasts is how they compare. So
only neighbours are compared: wherever one kind of steps follows another, the last steps of the one with the
first of the other. The costs of all kinds are those that agree best with all comparisons, as a median does: a
comparison during which the machine changed its speed is one against many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import median

import numpy as np

_NEAR = 7
"""Steps on either side that are compared, at most."""
_ROUNDS, _EXACT, _PULL = 6, 0.01, 1e-4
"""Of the weighted least squares that find the least sum; what is less is alike; pull to old costs."""
_SHARE, _CLIP = 0.05, 0.2
"""Of a step in the mean difference of one step and the next, and what one that waited counts at most."""
_KEPT = 32
"""Comparisons of two kinds."""


@dataclass
class _Run:
    """Steps of one kind, one after the other: logarithms of the seconds of the first and of the last ones."""

    kind: Hashable
    first: list[float] = field(default_factory=list)
    last: deque[float] = field(default_factory=lambda: deque(maxlen=_NEAR + 1))
    is_compared: bool = False

    def add(self, taken: float) -> None:
        if len(self.first) <= _NEAR:
            self.first.append(taken)
        self.last.append(taken)

    @property
    def beginning(self) -> list[float]:
        """Its first steps; the very last one of a run may have drafted for another kind already."""
        return self.first[: max(1, min(_NEAR, len(self.first) - 1))]

    @property
    def end(self) -> list[float]:
        return list(self.last)[max(0, len(self.last) - _NEAR - 1) : max(1, len(self.last) - 1)]


@dataclass
class Pace:
    """Costs of kinds of steps of one batch size, in seconds of the machine as it was first met.

    Logarithms throughout, so that a machine of half the speed adds the same to all kinds. A step like the one
    before it is only kept.

    Attributes:
        version: another one whenever a cost or a number of comparisons may have changed.
    """

    version: int = 0
    _costs: dict[Hashable, float] = field(default_factory=dict)
    _pairs: dict[tuple[Hashable, Hashable], deque[float]] = field(default_factory=dict)
    _noise: float = 0.0
    _num_found: int = 0
    _num_agreed: int = 0
    _new: Hashable = None
    _before: _Run | None = None
    _run: _Run | None = None

    def learn(self, kind: Hashable, seconds: float) -> None:
        """The next step was of ``kind`` and took so long."""
        taken, run = log(max(seconds, 1e-9)), self._run
        if run is not None and run.is_compared and run.kind == kind:  # most steps
            self._noise += _SHARE * (min(abs(taken - run.last[-1]), _CLIP) - self._noise)
            run.last.append(taken)
            return
        if self._run is None or self._run.kind != kind:
            self._compare()
            if self._run is not None and len(self._run.first) > 1:
                self._before = self._run  # a single step is none's neighbour
            self._run = _Run(kind)
            if kind not in self._costs:
                self._new = kind
        elif self._run.last:
            self._noise += _SHARE * (min(abs(taken - self._run.last[-1]), _CLIP) - self._noise)
        self._run.add(taken)
        if self._new == kind:  # a guess, until it is compared
            before = self._before
            slower = 0.0 if before is None else median(before.end) - self._costs[before.kind]
            self._costs[kind] = median(self._run.first) - slower
            self.version += 1
        if len(self._run.first) > _NEAR:
            self._compare()

    def _compare(self) -> None:
        """The beginning of this run with the end of the one before it, once."""
        before, run = self._before, self._run
        if run is None or run.is_compared or len(run.first) < 2:
            return
        run.is_compared, self._new = True, None
        if before is None or before.kind == run.kind:
            return
        difference = median(run.beginning) - median(before.end)
        pair = (before.kind, run.kind)
        if (run.kind, before.kind) in self._pairs:
            pair, difference = (run.kind, before.kind), -difference
        self._pairs.setdefault(pair, deque(maxlen=_KEPT)).append(difference)
        self._num_found += 1
        self.version += 1
        if self._num_found > self._num_agreed + self._num_agreed // 16:
            self._agree()

    def _agree(self) -> None:
        """The least sum of absolute differences; costs keep their mean, what is not tied down its value."""
        kinds = {kind: number for number, kind in enumerate(self._costs)}
        edges = [(kinds[a], kinds[b], found) for (a, b), kept in self._pairs.items() for found in kept]
        left, right = np.array([edge[:2] for edge in edges]).T
        found, held = np.array([edge[2] for edge in edges]), np.array(list(self._costs.values()))
        toward = np.zeros((len(edges), len(kinds)))
        toward[np.arange(len(edges)), left], toward[np.arange(len(edges)), right] = -1.0, 1.0
        costs, pull = held, _PULL * np.eye(len(kinds))
        for _ in range(_ROUNDS):
            weighed = toward.T / np.maximum(np.abs(toward @ costs - found), _EXACT)
            costs = np.linalg.solve(weighed @ toward + pull, weighed @ found + pull @ held)
        self._costs = dict(zip(self._costs, costs.tolist(), strict=True))
        self._num_agreed = self._num_found

    def cost(self, kind: Hashable) -> float:
        """Seconds on that machine; 0 for a kind that was never met."""
        return exp(self._costs[kind]) if kind in self._costs else 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the present kind was compared already: until another one comes nothing will change."""
        return self._run is not None and self._run.is_compared

    def comparisons(self, one: Hashable, other: Hashable) -> int:
        """How often the two kinds were compared, as many as are kept at most."""
        return len(self._pairs.get((one, other), ())) + len(self._pairs.get((other, one), ()))

    def doubt(self, count: int) -> float:
        """Standard error of so many comparisons, as a share of a cost."""
        return self._noise / sqrt(max(1, count))

    def interrupt(self) -> None:
        """Other work came between: the next step has no neighbours."""
        self._compare()
        self._run = self._before = None

    def forget(self, kind: Hashable) -> None:
        """Learn anew what ``kind`` costs."""
        self.interrupt()
        self.version += 1
        self._costs.pop(kind, None)
        self._pairs = {pair: kept for pair, kept in self._pairs.items() if kind not in pair}
