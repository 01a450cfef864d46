"""Threads that run compiled jobs while the interpreter goes on, without its lock.

A thread of a pool asks for that lock before and after a kernel, and gets it when the caller next waits for
something: a job of half a millisecond would then end when the caller asks for it, however early it was done.
A helper here stays in compiled code from its beginning to its end. It sleeps on a semaphore, takes what it
finds in its slot, and says on another semaphore that it is done.

A slot is FREE, holds the address of a job that was offered, or that address and TAKEN: until its owner has
seen the end of it, nobody else can offer anything there. Who ends a job does the parts that no helper began
and takes back what no helper took, so a thread that gets no processor is not waited for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from deepinfer.kernels.cpu.addresses import (
    Address,
    add,
    address_of,
    call,
    integers,
    post,
    prepared,
    processor,
    swapped,
    wait,
)
from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.worth import Worth

Int64 = npt.NDArray[np.int64]
FREE, TAKEN, STOP = 0, 1, 2
"""States of a slot; addresses are multiples of eight."""
_WAKE, _DONE, _HELPER_NUMBERS = 8, 16, 24
"""Where semaphores are among a helper's int64 numbers, whose first is its slot; each has a cache line."""
_FUNCTION, _LINE, _ITEMS, _PARTS, _NEXT, _FOUND, _FAILED, _OFFERED = range(8)
"""A job: what is called, its operands, items and their parts; the next part, sum of what calls gave back and
how many of them failed; how many helpers it was offered to, whose addresses follow."""
_BYTES = 8
_PATIENCE_S = 1.0
"""How long one that ends is waited for; it sleeps or is at the end of a job."""
_NO_MEMORY = "compiled code found no memory"
"""The one reason for which a job fails."""


@inlined
def _drain(job: Address) -> None:
    """Call the job's function on parts until all were begun."""
    numbers = carray(integers(job), (_OFFERED + 1,))
    items, parts = numbers[_ITEMS], numbers[_PARTS]
    while True:
        part = add(job + _BYTES * _NEXT, 1)
        if part >= parts:
            return
        low, high = items * part // parts, items * (part + 1) // parts
        found = call(numbers[_FUNCTION], numbers[_LINE], low, high)
        if found < 0:
            add(job + _BYTES * _FAILED, 1)
        else:
            add(job + _BYTES * _FOUND, found)


@kernel
def _serve(helper: int) -> None:
    """The life of a helper."""
    while True:
        wait(helper + _BYTES * _WAKE)
        job = add(helper, 0)
        if job == STOP:
            return
        # a job that was taken back leaves a wake-up behind
        if job != FREE and job & TAKEN == 0 and swapped(helper, job, job | TAKEN):
            _drain(job)
            post(helper + _BYTES * _DONE)


@kernel
def _perform(function: int, line: Int64, low: int, high: int) -> int:
    return call(function, np.int64(line.ctypes.data), low, high)


@kernel
def _here() -> int:
    """The processor of the caller."""
    return processor()


@kernel
def _offer(numbers: Int64, helpers: Int64, limit: int) -> None:
    """Offer a job to helpers [H, ...] that are free, to ``limit`` of them at most."""
    job = np.int64(numbers.ctypes.data)
    for row in range(len(helpers)):
        helper = np.int64(helpers[row].ctypes.data)
        if numbers[_OFFERED] < limit and swapped(helper, FREE, job):
            numbers[_OFFERED] += 1
            numbers[_OFFERED + numbers[_OFFERED]] = helper
            post(helper + _BYTES * _WAKE)


@kernel
def _finish(numbers: Int64) -> None:
    """Do the parts of a job that are left; wait for the helpers that took any."""
    job = np.int64(numbers.ctypes.data)
    _drain(job)
    for helper in numbers[_OFFERED + 1 : _OFFERED + 1 + numbers[_OFFERED]]:
        if not swapped(helper, job, FREE):
            wait(helper + _BYTES * _DONE)
            add(helper, FREE - (job | TAKEN))


@kernel
def _prepare(helpers: Int64) -> bool:
    """Make the semaphores of helpers; whether the system has such."""
    is_sound = True
    for row in range(len(helpers)):
        helper = np.int64(helpers[row].ctypes.data)
        is_sound &= prepared(helper + _BYTES * _WAKE) and prepared(helper + _BYTES * _DONE)
    return is_sound


@kernel
def _stop(helpers: Int64) -> None:
    """End the life of helpers that have nothing to do."""
    for row in range(len(helpers)):
        helper = np.int64(helpers[row].ctypes.data)
        if swapped(helper, FREE, STOP):
            post(helper + _BYTES * _WAKE)


class Begun:
    """A job that helpers may be at."""

    def __init__(self, numbers: Int64, operands: object) -> None:
        """``operands`` are kept alive until the job has ended, and with it every address in ``numbers``."""
        self._operands: object = operands
        self._numbers, self._is_over, self.seconds = numbers, False, 0.0

    def end(self) -> int:
        """Wait for it; the sum of what its calls gave back. ``seconds`` are what that took.

        Raises:
            MemoryError: a call failed.
        """
        if not self._is_over:
            started = time.perf_counter()
            _finish(self._numbers)
            self._is_over, self._operands = True, None
            self.seconds = time.perf_counter() - started
        if self._numbers[_FAILED]:
            raise MemoryError(_NO_MEMORY)
        return int(self._numbers[_FOUND])

    def __del__(self) -> None:
        """Nobody may write into memory that is given back."""
        if not self._is_over:
            _finish(self._numbers)


class Helpers:
    """``count`` threads that are started when there is something to do; none where Linux is not."""

    def __init__(self, count: int) -> None:
        """Nothing is started."""
        self._count, self._lock = count if sys.platform == "linux" else 0, threading.Lock()
        self._numbers: Int64 | None = None
        self._threads, self._avoided = list[threading.Thread](), -1
        self._worth = Worth()

    def begin(self, function: int, line: Int64, num_items: int, operands: object) -> Callable[[], int]:
        """Let helpers do a job while the caller goes on; what comes back is ``Begun.end``.

        A job of one item, for which the caller could have waited, is done at once where that was seen to
        cost the caller less.

        Args:
            function: address of compiled ``int64 function(line, low, high)``, which covers items
                ``low .. high`` and gives back a number of its own, or -1 if it failed.
            line: its operands as numbers, C-contiguous.
            num_items: how many there are.
            operands: whatever ``line`` has addresses of.
        """
        helpers = self._started()
        parts = min(2 * (1 + len(helpers)), num_items)
        numbers = np.zeros(_OFFERED + 1 + len(helpers), np.int64)
        numbers[:_NEXT] = function, address_of(line), num_items, parts
        begun = Begun(numbers, (self, line, operands))
        is_offered = len(helpers) > 0 and (parts > 1 or self._worth.is_offered())
        started = time.perf_counter()
        if is_offered:
            self._step_aside()
            _offer(numbers, helpers, parts)
        else:
            begun.end()
        seconds = time.perf_counter() - started
        if parts > 1 or not len(helpers):
            return begun.end
        if not is_offered:
            self._worth.add(False, seconds)
            return begun.end
        return lambda: self._ended(begun, seconds)

    def _ended(self, begun: Begun, seconds: float) -> int:
        found = begun.end()
        self._worth.add(True, seconds + begun.seconds)
        return found

    def _started(self) -> Int64:
        """Slots and semaphores of all helpers, int64 [H, _HELPER_NUMBERS]."""
        if self._numbers is None:
            with self._lock:
                if self._numbers is None:
                    self._numbers = self._start()
        return self._numbers

    def _start(self) -> Int64:
        numbers = np.zeros((self._count, _HELPER_NUMBERS), np.int64)
        if not _prepare(numbers):
            return numbers[:0]  # whoever begins a job does it
        weakref.finalize(self, _end_all, numbers, self._threads)
        for count, helper in enumerate(numbers):
            given = helper.ctypes.data, numbers
            thread = threading.Thread(target=_live, args=given, name="deepinfer-helper", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads
                return numbers[:count]
            self._threads.append(thread)
        return numbers

    def _step_aside(self) -> None:
        """Let no helper wake up where the caller runs.

        A virtual processor that sleeps looks busy to Linux, which then wakes a helper on the caller's, ahead
        of the caller.
        """
        here = _here()
        if here == self._avoided:
            return
        self._avoided = here
        elsewhere = os.sched_getaffinity(0) - {here}
        for thread in self._threads:
            if elsewhere and thread.native_id is not None and thread.is_alive():
                with contextlib.suppress(OSError):  # then it runs where it may
                    os.sched_setaffinity(thread.native_id, elsewhere)


def perform(function: int, line: Int64, low: int, high: int) -> int:
    """Items ``low .. high`` of a job at once; what its function gives back.

    Raises:
        MemoryError: it failed.
    """
    found = _perform(function, line, low, high)
    if found < 0:
        raise MemoryError(_NO_MEMORY)
    return found


def _end_all(numbers: Int64, threads: list[threading.Thread]) -> None:
    """Let threads end before the interpreter does: each asks for its lock once more."""
    _stop(numbers)
    for thread in threads:
        if thread.is_alive():
            thread.join(_PATIENCE_S)


def _live(helper: int, numbers: Int64) -> None:
    """Serve; ``numbers`` are kept alive as long as the thread is."""
    _serve(helper)
