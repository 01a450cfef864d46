"""How long decode steps take, by number of rows, as measured while they run.

What was never measured, or not for a long time, counts as no dearer than the next smaller number of rows, so
it is tried and then known. Wrong figures cost speed and no bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

KEPT = 9
"""Timings of a size; their median is believed."""
_ENOUGH = 3
_MEMORY = 2000
"""Steps after which a size that was not met again is tried anew."""


def size_class(num_rows: int) -> int:
    """Sizes that share their timings: each up to 16, then steps of a sixteenth to an eighth."""
    if num_rows <= 16:
        return num_rows
    grain = 1 << (num_rows.bit_length() - 4)
    return -(-num_rows // grain) * grain


@dataclass
class StepCosts:
    """Seconds of steps of one kind by size class, from the last ``kept`` of each."""

    kept: int = KEPT
    _timings: dict[int, deque[float]] = field(default_factory=dict)
    _last: dict[int, int] = field(default_factory=dict)
    _clock: int = 0

    def learn(self, num_rows: int, seconds: float) -> None:
        """A step of ``num_rows`` rows took so long."""
        self._clock += 1
        size = size_class(num_rows)
        self._timings.setdefault(size, deque(maxlen=self.kept)).append(seconds)
        self._last[size] = self._clock

    def curve(self, num_rows: int, count: int) -> Float64Array:
        """Seconds of ``num_rows``, ``num_rows + 1``, ...: float64 [count], never falling; 0 if all is new."""
        known = {size: median(t) for size, t in self._timings.items() if self._is_known(size)}
        sizes = np.array(sorted(known), np.int64)
        wanted = np.array([size_class(num_rows + i) for i in range(count)])
        places = np.searchsorted(sizes, wanted, side="right")
        highest = np.maximum.accumulate(np.array([0.0, *(known[size] for size in sizes.tolist())]))
        found: Float64Array = highest[places]
        return found

    def is_known(self, num_rows: int) -> bool:
        """Whether steps of about so many rows were met lately, and often enough."""
        size = size_class(num_rows)
        return size in self._timings and self._is_known(size)

    def _is_known(self, size: int) -> bool:
        return len(self._timings[size]) >= _ENOUGH and self._clock - self._last[size] < _MEMORY
