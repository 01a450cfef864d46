"""Whether it pays to hand a job to another thread, from what both ways cost the caller so far.

Waking a thread costs some 10 us where it has a processor of its own. Where a virtual one has to be woken
first, the caller was seen to stand still until the job was done. Nothing in the system says which it is, so
both ways are tried. No bit depends on who does a job.
"""

from __future__ import annotations

from collections import deque

_REMEMBERED = 9
"""Jobs whose median speaks for each way: a machine changes, and single jobs are disturbed."""
_ENOUGH = 3
_SELDOM = 24
"""One job in so many goes the other way, to see what that costs now."""


class Worth:
    """Medians of what the caller spent, with a job offered and with it done at once."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._seconds = {way: deque[float](maxlen=_REMEMBERED) for way in (True, False)}
        self._count = 0

    def is_offered(self) -> bool:
        """Whether the next job is to be offered to a helper."""
        self._count += 1
        offered, alone = self._seconds[True], self._seconds[False]
        if min(len(offered), len(alone)) < _ENOUGH:
            return len(offered) <= len(alone)
        return (_median(offered) < _median(alone)) != (self._count % _SELDOM == 0)

    def add(self, is_offered: bool, seconds: float) -> None:
        """What a job cost the caller: until it could go on, and what it waited in the end."""
        self._seconds[is_offered].append(seconds)


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]
