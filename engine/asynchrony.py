"""Where a step runs: here and now, on a thread of its own, or on a device that is not waited for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Launchable(ABC):
    """Work that can be handed to a device."""

    @abstractmethod
    def launch(self) -> Callable[[], Any]:
        """Begin; what comes back waits for the result."""


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


class Queue:
    """Work goes to the device's queue, behind what is there; what cannot be queued is done at once."""

    is_asynchronous = True

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """See ``Runner``."""
        if isinstance(work, Launchable):
            return work.launch()
        result = work()
        return lambda: result


def runner_of(device_type: str, is_asynchronous: bool) -> Runner:
    """Who runs the steps on a device of this type."""
    if not is_asynchronous:
        return Inline()
    return Worker() if device_type == "cpu" else Queue()
