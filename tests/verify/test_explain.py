"""What is said about a failing case, checked against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from deepinfer.verify.case import Answer, Ask, Case, Trial, settings
from deepinfer.verify.explain import Explanation, Flip, classify, explain
from deepinfer.verify.explain_text import explanation_lines
from deepinfer.verify.outcome import judge

CASE = Case(
    check="chunks",
    name="size-4",
    left=Trial(ask=Ask.SCORE, prompts=(tuple(range(9)),)),
    right=Trial(ask=Ask.SCORE, prompts=(tuple(range(9)),), engine=settings(max_chunk_tokens=4)),
)


def rows(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    generator = np.random.default_rng(3)
    return generator.standard_normal((count, 8)).astype(np.float32)


def sides(changed: dict[int, float], count: int = 9) -> tuple[Answer, Answer]:
    """Answers that differ in element 2 of some rows by so many ulp."""
    left = rows(count)
    right = left.copy()
    for row, ulp in changed.items():
        right.view(np.int32)[row, 2] += int(ulp)
    positions = np.arange(1, count + 1)
    ids = np.arange(count, dtype=np.int32)
    made = Answer(token_ids=ids, positions=positions, logits=left)
    return made, replace(made, logits=right)


def explained(changed: dict[int, float], window: int = 64) -> Explanation:
    left, right = sides(changed)
    return explain(judge(CASE, left, right), left, right, window=window, options=" --quick")


def test_the_first_difference_is_told_in_full() -> None:
    found = explained({4: 3, 6: 100_000})
    assert (found.position, found.coordinates, found.ulp) == (5, (4, 2), 3)
    assert found.left_hex == f"0x{rows(9).view(np.uint32)[4, 2]:08x}"
    assert int(found.right_hex, 16) - int(found.left_hex, 16) == 3
    assert (found.num_differing, found.num_elements) == (2, 72)
    assert (found.num_differing_rows, found.num_rows) == (2, 9)
    assert found.strip == (0, 0, 0, 0, 3, 0, 100_000, 0, 0)
    assert found.repro == "deepinfer bisect chunks/size-4 --quick"
    assert found.flip is Flip.NONE
    assert 0 < found.kl_left_right < 1e-3
    assert [top.token_id for top in found.top_left] == [top.token_id for top in found.top_right]
    assert math.fsum(math.exp(top.logprob) for top in found.top_left) < 1


def test_rows_at_chunk_edges_are_noticed() -> None:
    assert any("first of a right chunk of 4" in line for line in explained({0: 1, 4: 1, 8: 1}).boundaries)
    assert not any("chunk" in line for line in explained({1: 1, 2: 1, 4: 1}).boundaries)


def test_windows_are_noticed() -> None:
    assert any("last of a window of 3" in line for line in explained({2: 1, 5: 1, 8: 1}, window=3).boundaries)


@pytest.mark.parametrize(
    ("left", "right", "flip"),
    [
        ([2.0, 1.0], [2.0, 1.5], Flip.NONE),
        ([2.0, 2.0], [2.0, 2.000001], Flip.TIE),
        ([2.0, 1.999], [1.999, 2.0], Flip.NEAR_TIE),
        ([2.0, 1.0], [1.0, 2.0], Flip.CONFIDENT),
    ],
)
def test_flips_are_told_apart(left: list[float], right: list[float], flip: Flip) -> None:
    found, gap = classify(np.array([left], np.float32), np.array([right], np.float32))
    assert found is flip
    assert (gap > 0) == (flip is not Flip.NONE)


def test_the_worst_row_decides() -> None:
    one = np.array([[2.0, 1.0], [2.0, 2.0]], np.float32)
    other = np.array([[1.0, 2.0], [2.0, 2.1]], np.float32)
    assert classify(one, other) == (Flip.CONFIDENT, 1.0)


def test_a_signed_zero_shows_in_the_strip() -> None:
    left, right = sides({})
    left.logits[3, 1], right.logits[3, 1] = 0.0, -0.0
    found = explain(judge(CASE, left, right), left, right, window=64)
    assert found.strip[3] == 1
    assert found.ulp == 0


def test_the_text_names_everything() -> None:
    text = "\n".join(explanation_lines(explained({4: 3})))
    for word in (
        "chunks/size-4",
        "max_chunk_tokens=4",
        "position 5",
        "3 ulp",
        "KL(left, right)",
        "no flip",
        "0x",
    ):
        assert word in text, word
    assert "sha256" in text
