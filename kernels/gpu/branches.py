"""Work of a recording that runs beside what is launched after it: on a stream of its own, from fork to join.

A decode turn is hundreds of launches of few microseconds, one behind the other, and most of its work does not
need what was launched just before. Recorded on another stream it becomes another branch of the graph. The
kernels, their operands and the order of every sum are the same, so a branch moves no bit; what it shares with
nobody is the workspace of its products (a kernel set has one for each lane).

Memory is safe by three rules. A branch holds what its work reads until it is joined, so nobody is given that
memory before. What it allocates belongs to its stream, and work on that stream begins behind all that its
caller had launched or joined until then, so also behind the last reader of memory that was given back. And it
is joined before the recording ends, for its result is what somebody waits for; within a branch, before that
one is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

NUM_LANES = 6
"""Streams beside the main one: some branches last a whole turn, two or three a sublayer, and work that finds
none free is done at once."""
MOST_ROWS = 512
"""Rows of a step that is branched, at most: the launches of larger ones fill the chip by themselves."""


@dataclass(eq=False)
class _Lane:
    """A stream; ``is_free`` if the last work on it was waited for."""

    number: int
    stream: torch.cuda.Stream
    is_free: bool = True


@dataclass(frozen=True, eq=False)
class _Running(Generic[T]):
    """Work that was launched on a lane.

    Attributes:
        work: kept for the tensors that it reads.
        within: branches of this one. Their results, too, are kept: their lanes may be free, and the reader of
            a result is behind nothing that the next work there waits for.
        result: complete for whoever waits for ``done``.
    """

    work: Callable[[], T]
    within: tuple[object, ...]
    result: T
    done: torch.cuda.Event
    lane: _Lane
    place: torch.device

    def __call__(self) -> T:
        """The result, for launches of the current stream."""
        torch.cuda.current_stream(self.place).wait_event(self.done)
        self.lane.is_free = True
        return self.result


class Branches:
    """Streams of one kernel set.

    Attributes:
        lane: what launches go to now: 0 for the caller's stream, else one of ``NUM_LANES``.
        most_rows: of a step that is branched; 0 keeps everything in one line, to see what branches bring.
    """

    def __init__(self, place: torch.device) -> None:
        """Take streams of ``place``, if it is a CUDA device."""
        self.lane, self.most_rows = 0, MOST_ROWS
        self._within: list[object] = []
        self._place = place
        count = NUM_LANES if place.type == "cuda" else 0
        self._lanes = [
            _Lane(1 + number, torch.cuda.Stream(place))  # type: ignore[no-untyped-call]
            for number in range(count)
        ]

    def start(self, work: Callable[[], T], num_rows: int) -> Callable[[], T]:
        """See ``Ops.beside``: beside in a recording of few rows, else at once."""
        is_branched = self._lanes and num_rows <= self.most_rows and torch.cuda.is_current_stream_capturing()
        free = [lane for lane in self._lanes if lane.is_free] if is_branched else []
        if not free:
            result = work()
            return lambda: result
        lane, outer, beside = free[0], self.lane, self._within
        lane.stream.wait_stream(torch.cuda.current_stream(self._place))
        lane.is_free, self.lane, self._within = False, lane.number, []
        try:
            with torch.cuda.stream(lane.stream):
                result = work()
        finally:
            within = tuple(self._within)
            self.lane, self._within = outer, beside
        running = _Running(work, within, result, lane.stream.record_event(), lane, self._place)
        if outer:
            beside.append(running)
        return running
