"""Numbers of drafts that may be better than the present one, tried again for a few steps now and then.

How two numbers compare is known from few steps at first, on a machine that changes its speed: several
short trials at different times say more than a long one. Numbers that pay nearly as much cost nearly nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from math import sqrt

_BETWEEN = 6
"""Questions between trials; an answer holds for a few steps."""
_COMPARISONS, _TRIALS = 2, 8
"""Of a trial, with what comes before it and behind; trials after which a number is known."""
_DOUBT, _FEWEST = 0.2, 4
"""How much faster than it seems a number may be after one trial, which falls as means do; twice as much with
fewer comparisons, of which one may have met a change of speed."""


def _doubt(comparisons: int) -> float:
    return 2 * _DOUBT if comparisons < _FEWEST else _DOUBT / sqrt(comparisons / _COMPARISONS)


@dataclass
class Contenders:
    """Trials with a single sequence."""

    _waited: int = 0
    _number: int = 0

    def waits(self, present: int) -> bool:
        """The number of drafts of the next steps is asked for: whether it is ``present`` without a trial."""
        self._number = present
        self._waited += 1
        return self._waited < _BETWEEN

    def instead_of(
        self, present: int, numbers: Items[int], speeds: Items[float], comparisons: Items[int]
    ) -> int:
        """What it is if that does not wait: ``present``, or a number that is being tried.

        Args:
            present: what seems best.
            numbers: of drafts that were met, ``present`` among them.
            speeds: what they seem to give.
            comparisons: how often each was compared with ``present``.
        """
        if present not in numbers:
            return present
        self._waited, best = 0, speeds[numbers.index(present)]
        open_ones = [
            (count, number)
            for number, speed, count in zip(numbers, speeds, comparisons, strict=True)
            if number != present and count < _TRIALS * _COMPARISONS and speed * (1 + _doubt(count)) > best
        ]
        if not open_ones:
            return present
        self._number = min(open_ones)[1]
        return self._number

    def is_trying(self, number: int) -> bool:
        """Whether drafts of this number are those of a trial."""
        return self._waited == 0 and self._number == number
