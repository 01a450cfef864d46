from __future__ import annotations

from itertools import combinations

import pytest

from deepinfer.verify.result import CheckResult, Status, Verdict, worst_code

WORST_FIRST = [2, 4, 1, 3, 5, 0]


def verdict(*statuses: Status) -> Verdict:
    results = tuple(CheckResult(name=s.value, status=s, detail="", num_inspected=1) for s in statuses)
    return Verdict(results=results, subject={})


@pytest.mark.parametrize(("worse", "better"), list(combinations(WORST_FIRST, 2)))
def test_the_worse_code_wins_in_any_order(worse: int, better: int) -> None:
    assert worst_code([worse, better]) == worse
    assert worst_code([better, worse]) == worse


def test_nothing_checked_is_inconclusive() -> None:
    assert worst_code([]) == 5
    assert verdict().name == "inconclusive"
    assert verdict(Status.NOT_APPLICABLE).exit_code == 5


@pytest.mark.parametrize(
    ("statuses", "code", "name"),
    [
        ([Status.SAME], 0, "same"),
        ([Status.SAME, Status.NOT_APPLICABLE], 0, "same"),
        ([Status.SAME, Status.SKIPPED], 5, "inconclusive"),
        ([Status.SAME, Status.INCONCLUSIVE], 5, "inconclusive"),
        ([Status.INCONCLUSIVE, Status.UNLOCKED], 3, "unlocked"),
        ([Status.UNLOCKED, Status.DIFFERENT, Status.SKIPPED], 1, "different"),
    ],
)
def test_the_verdict_is_the_worst_check(statuses: list[Status], code: int, name: str) -> None:
    assert (verdict(*statuses).exit_code, verdict(*statuses).name) == (code, name)


def test_a_check_that_looked_at_nothing_cannot_be_green() -> None:
    with pytest.raises(ValueError, match="calls nothing the same"):
        CheckResult(name="empty", status=Status.SAME, detail="")
