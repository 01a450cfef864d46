"""Whether jobs are handed over depends on what either way cost the caller."""

from __future__ import annotations

import pytest

from deepinfer.kernels.cpu.worth import Worth


def ways(worth: Worth, offered_s: float, alone_s: float, num_jobs: int) -> list[bool]:
    """The way that each of some jobs goes."""
    taken = list[bool]()
    for _ in range(num_jobs):
        taken.append(worth.is_offered())
        worth.add(taken[-1], offered_s if taken[-1] else alone_s)
    return taken


@pytest.mark.parametrize("is_better", [True, False])
def test_the_way_that_costs_less_is_taken(is_better: bool) -> None:
    cost = {is_better: 1.0, not is_better: 2.0}
    taken = ways(Worth(), cost[True], cost[False], 200)
    assert set(taken[:6]) == {True, False}, "both are tried"
    assert 180 <= taken.count(is_better) < 200, "the other way now and then"


def test_a_machine_that_changes_is_noticed() -> None:
    worth = Worth()
    ways(worth, 1.0, 2.0, 100)
    assert ways(worth, 9.0, 2.0, 100)[-20:].count(False) >= 18
    assert ways(worth, 1.0, 2.0, 300)[-20:].count(True) >= 18


def test_single_disturbances_change_nothing() -> None:
    worth = Worth()
    ways(worth, 1.0, 2.0, 100)
    for _ in range(3):
        worth.add(True, 100.0)
    assert ways(worth, 1.0, 2.0, 20).count(True) >= 19
