"""Shrinking ends at a case from which nothing can be taken, whatever makes it fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.shrink import shrink

TARGET = tuple(range(100, 197))


def batch_case() -> Case:
    neighbours = [tuple(range(i, i + 20)) for i in range(6)]
    return Case(
        check="batch",
        name="7-middle",
        left=Trial(ask=Ask.SCORE, prompts=(TARGET,), engine=settings(num_threads=1)),
        right=Trial(
            ask=Ask.SCORE,
            prompts=(*neighbours[:3], TARGET, *neighbours[3:]),
            target=3,
            engine=settings(max_chunk_tokens=64, num_threads=2),
        ),
    )


def num_rows(trial: Trial) -> int:
    return sum(map(len, trial.prompts))


@pytest.mark.parametrize(
    ("fails", "left", "right", "tokens"),
    [
        (lambda case: True, 1, 1, 1),
        (lambda case: num_rows(case.right) >= 40, 1, 1, 40),
        (lambda case: len(case.right.prompts) >= 3, 1, 3, 1),
        (lambda case: 150 in case.left.tokens and 151 in case.left.tokens, 1, 1, 2),
        (lambda case: any(5 in ids for ids in case.right.prompts), 1, 2, 1),
    ],
)
def test_what_is_left_is_what_matters(
    fails: Callable[[Case], bool], left: int, right: int, tokens: int
) -> None:
    found = shrink(batch_case(), fails)
    assert found.is_minimal
    assert fails(found.case)
    assert len(found.case.left.prompts) == left
    assert len(found.case.right.prompts) == right
    assert len(found.case.left.tokens) == tokens
    assert found.case.left.tokens == found.case.right.tokens
    assert found.num_runs < 400


def test_settings_that_do_not_matter_go_and_those_that_do_shrink() -> None:
    def fails(case: Case) -> bool:
        size = dict(case.right.engine).get("max_chunk_tokens")
        return isinstance(size, int) and size >= 5 and len(case.left.tokens) > size

    found = shrink(batch_case(), fails).case
    assert found.left.engine == ()
    assert dict(found.right.engine) == {"max_chunk_tokens": 5}
    assert len(found.left.tokens) == 6


def test_every_single_removal_passes() -> None:
    """1-minimality itself: three tokens far apart and one neighbour of at least four tokens."""

    def fails(case: Case) -> bool:
        others = [ids for ids in case.right.prompts if ids != case.right.tokens]
        return {101, 140, 190} <= set(case.left.tokens) and any(len(ids) >= 4 for ids in others)

    found = shrink(batch_case(), fails).case
    assert found.left.tokens == (101, 140, 190)
    assert [len(ids) for ids in found.right.prompts] == [4, 3]


def test_generated_tokens_and_warm_prompts_shrink() -> None:
    cold = Trial(ask=Ask.GENERATE, prompts=(TARGET,), max_tokens=30)
    warm = Trial(ask=Ask.GENERATE, prompts=(TARGET,), max_tokens=30, before=((*TARGET[:60], 7, 8), (1, 2)))
    case = Case(check="prefix", name="warm", left=cold, right=warm)

    def fails(smaller: Case) -> bool:
        before = smaller.right.before
        shared = [b for b in before if b[:10] == smaller.right.tokens[:10] and len(b) >= 10]
        return bool(shared) and smaller.right.max_tokens >= 3 and len(smaller.right.tokens) > 10

    found = shrink(case, fails).case
    assert (found.left.max_tokens, found.right.max_tokens) == (3, 3)
    assert [len(ids) for ids in found.right.before] == [10]
    assert len(found.left.tokens) == 11


def test_the_limit_of_runs_is_kept_and_said() -> None:
    found = shrink(batch_case(), lambda case: num_rows(case.right) >= 40, max_runs=3)
    assert not found.is_minimal
    assert found.num_runs <= 4
