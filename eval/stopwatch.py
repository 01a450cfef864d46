"""Times functions of other modules from outside, so that measured code holds no trace of being measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Stopwatch:
    """Time spent in one function so far.

    Attributes:
        seconds: total over all calls.
        num_calls: finished calls.
    """

    seconds: float = 0.0
    num_calls: int = 0

    def timing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its calls added up here."""

        def timed_function(*arguments: Any, **named: Any) -> Any:
            started_s = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - started_s
                self.num_calls += 1

        return timed_function


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Give ``owner`` (a module or a class) another ``name`` within the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def timed(owner: object, name: str) -> Iterator[Stopwatch]:
    """Time every call of ``owner.name`` within the block."""
    watch = Stopwatch()
    with replaced(owner, name, watch.timing(getattr(owner, name))):
        yield watch
