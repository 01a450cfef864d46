"""Jobs that helpers do while the caller goes on: every item once, nobody waited for who does not run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from numba import carray  # type: ignore[attr-defined]

from deepinfer.kernels.cpu.addresses import add, integers
from deepinfer.kernels.cpu.compiled import job
from deepinfer.kernels.cpu.job_threads import FREE, Helpers, perform

Int64 = npt.NDArray[np.int64]
BEGUN, MAY_END, FAILS, FIRST = 0, 1, 2, 3
"""The line of ``count_job``: calls, whether the first may end, the item that fails; one number an item."""


@job
def count_job(line: int, low: int, high: int) -> int:
    """Count items ``low .. high``, the first ones once that is allowed; give back how many there are."""
    numbers = carray(integers(line), (FIRST + high,))
    add(line, 1)
    while low == 0 and add(line + 8 * MAY_END, 0) == 0:
        pass
    for item in range(low, high):
        numbers[FIRST + item] += 1
        if item == numbers[FAILS]:
            return -1
    return high - low


def line_of(num_items: int, may_end: bool = True, fails: int = -1) -> Int64:
    line = np.zeros(FIRST + num_items, np.int64)
    line[MAY_END], line[FAILS] = may_end, fails
    return line


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    given_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < given_up, "nothing happened"
        time.sleep(0.001)


def held_up(helpers: Helpers, num_items: int = 2) -> tuple[Int64, Callable[[], int]]:
    """A job of several items whose helper waits for ``MAY_END``."""
    line = line_of(num_items, may_end=False)
    end = helpers.begin(count_job(), line, num_items, None)
    until(lambda: bool(line[BEGUN]))
    return line, end


def test_a_helper_works_while_the_caller_goes_on() -> None:
    line, end = held_up(Helpers(1))
    assert line[FIRST] == 0
    line[MAY_END] = 1
    until(lambda: line[FIRST:].tolist() == [1, 1])
    assert end() == 2
    assert end() == 2


@pytest.mark.parametrize("num_items", [1, 2, 3, 7, 8, 50])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_every_item_is_covered_once(count: int, num_items: int) -> None:
    helpers = Helpers(count)
    for _ in range(40):
        line = line_of(num_items)
        assert helpers.begin(count_job(), line, num_items, None)() == num_items
        assert line[FIRST:].tolist() == [1] * num_items
    assert helpers._numbers is not None
    assert (helpers._numbers[:, 0] == FREE).all(), "there is room for the next one"


def test_who_ends_a_job_waits_for_a_helper() -> None:
    line, end = held_up(Helpers(1))
    threading.Timer(0.05, line.__setitem__, (MAY_END, 1)).start()
    assert end() == 2
    assert line[FIRST:].tolist() == [1, 1]


def test_alone_everything_is_done_at_once() -> None:
    line = line_of(4)
    end = Helpers(0).begin(count_job(), line, 4, None)
    assert line[FIRST:].tolist() == [1] * 4
    assert end() == 4


def test_the_caller_does_what_no_helper_took() -> None:
    """The one helper is busy: the job is the caller's, and the helper is not waited for."""
    helpers = Helpers(1)
    busy, end = held_up(helpers)
    line = line_of(6)
    assert helpers.begin(count_job(), line, 6, None)() == 6
    assert line[FIRST:].tolist() == [1] * 6
    busy[MAY_END] = 1
    assert end() == 2


@pytest.mark.parametrize("is_refused", [False, True])
def test_threads_that_never_run_are_not_waited_for(is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        if is_refused:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    helpers = Helpers(2)
    for _ in range(3):  # what was offered is taken back, so that there is room for the next
        line = line_of(5)
        assert helpers.begin(count_job(), line, 5, None)() == 5
        assert line[FIRST:].tolist() == [1] * 5


def test_callers_from_several_threads() -> None:
    helpers, wrong = Helpers(2), list[int]()

    def call(num_items: int) -> None:
        for _ in range(500):
            line = line_of(num_items)
            if helpers.begin(count_job(), line, num_items, None)() != num_items or (line[FIRST:] != 1).any():
                wrong.append(num_items)

    callers = [threading.Thread(target=call, args=(num_items,)) for num_items in (1, 2, 9)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("num_items", [1, 6])
def test_an_error_comes_to_who_waits(num_items: int) -> None:
    helpers = Helpers(1)
    with pytest.raises(MemoryError, match="no memory"):
        helpers.begin(count_job(), line_of(num_items, fails=num_items - 1), num_items, None)()
    with pytest.raises(MemoryError, match="no memory"):
        perform(count_job(), line_of(3, fails=2), 0, 3)
    assert perform(count_job(), line_of(3, fails=2), 0, 2) == 2
    assert helpers.begin(count_job(), line_of(num_items), num_items, None)() == num_items


def test_a_job_that_nobody_ends_has_ended_before_its_memory_is_given_back() -> None:
    line, end = held_up(Helpers(1))
    threading.Timer(0.05, line.__setitem__, (MAY_END, 1)).start()
    del end
    assert line[FIRST:].tolist() == [1, 1]


def test_helpers_end_with_their_owner() -> None:
    helpers = Helpers(3)
    helpers.begin(count_job(), line_of(8), 8, None)()
    threads = helpers._threads
    assert len(threads) == 3
    assert all(thread.is_alive() for thread in threads)
    del helpers
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: there is nowhere else to go")
def test_no_helper_wakes_up_where_the_caller_runs() -> None:
    helpers = Helpers(1)
    helpers.begin(count_job(), line_of(8), 8, None)()
    places = os.sched_getaffinity(helpers._threads[0].native_id or 0)
    assert places == os.sched_getaffinity(0) - {helpers._avoided}
    assert len(places) == len(os.sched_getaffinity(0)) - 1
