"""Work that is split over threads: every item once, errors where the caller waits."""

from __future__ import annotations

import threading

import pytest

from deepinfer.kernels.cpu.workers import Workers


@pytest.mark.parametrize("num_items", [1, 2, 3, 7, 8, 50])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_item_is_covered_once(num_threads: int, num_items: int) -> None:
    seen = list[int]()
    Workers(num_threads).run(
        num_items, 1, lambda low, high: seen.extend(range(low, high)), 3, item_cost=10_000_000
    )
    assert sorted(seen) == list(range(num_items))


def test_helpers_take_part() -> None:
    both = threading.Barrier(2)
    names = set[str]()

    def body(low: int, high: int) -> None:
        both.wait(30)
        names.add(threading.current_thread().name)

    Workers(2).run(2, 1, body, item_cost=10_000_000)
    assert len(names) == 2


@pytest.mark.parametrize("num_items", [1, 6])
def test_an_error_comes_to_who_waits(num_items: int) -> None:
    def body(low: int, high: int) -> None:
        raise ValueError("no such record")

    with pytest.raises(ValueError, match="no such record"):
        Workers(2).run(num_items, 1, body, item_cost=10_000_000)
