"""Work that helpers do while the caller goes on: every item once, errors where the caller asks."""

from __future__ import annotations

import threading

import pytest

from deepinfer.kernels.cpu.workers import Workers


def test_a_helper_works_while_the_caller_goes_on() -> None:
    begun, may_end, seen = threading.Event(), threading.Event(), list[tuple[int, int, str]]()

    def body(low: int, high: int) -> None:
        begun.set()
        assert may_end.wait(10)
        seen.append((low, high, threading.current_thread().name))

    end = Workers(2).begin(1, body)
    assert begun.wait(10), "nobody began"
    assert not seen
    may_end.set()
    end()
    assert [(low, high) for low, high, _ in seen] == [(0, 1)]
    assert seen[0][2].startswith("deepinfer-kernel")


@pytest.mark.parametrize("num_items", [1, 2, 3, 7, 8, 50])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_item_is_covered_once(num_threads: int, num_items: int) -> None:
    seen = list[int]()
    Workers(num_threads).begin(num_items, lambda low, high: seen.extend(range(low, high)))()
    assert sorted(seen) == list(range(num_items))


def test_the_caller_does_what_no_helper_took() -> None:
    """A helper that is busy elsewhere is not waited for."""
    workers, may_end, seen = Workers(2), threading.Event(), list[str]()
    busy = workers.begin(1, lambda low, high: [may_end.wait(10)] and None)
    workers.begin(3, lambda low, high: seen.append(threading.current_thread().name))()
    assert seen == [threading.current_thread().name] * 3
    may_end.set()
    busy()


@pytest.mark.parametrize("num_items", [1, 6])
def test_an_error_comes_to_who_waits(num_items: int) -> None:
    def body(low: int, high: int) -> None:
        raise ValueError("no such record")

    end = Workers(2).begin(num_items, body)
    with pytest.raises(ValueError, match="no such record"):
        end()


def test_alone_everything_is_done_at_once() -> None:
    seen = list[int]()
    end = Workers(1).begin(4, lambda low, high: seen.extend(range(low, high)))
    assert seen == [0, 1, 2, 3]
    end()
    assert seen == [0, 1, 2, 3]
