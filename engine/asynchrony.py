"""Where a step runs: here and now, or on a thread of its own while the next one is planned."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Runner(Protocol):
    """Starts pieces of work that follow each other."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether the caller goes on while the work runs."""

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """Begin ``work``; the result waits for it, and gives its result or raises its error."""


class Inline:
    """Work is done when ``start`` returns."""

    is_asynchronous = False

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """See ``Runner``."""
        result = work()
        return lambda: result


class Worker:
    """One thread that does everything in the order given."""

    is_asynchronous = True

    def __init__(self) -> None:
        """The thread starts with the first work and ends with this object."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """See ``Runner``."""
        return self._pool.submit(work).result
