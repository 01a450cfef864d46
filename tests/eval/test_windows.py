from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.errors import InputError
from deepinfer.eval.windows import (
    Disjoint,
    HalfWindow,
    Strided,
    WholeDocument,
    Window,
    WindowPolicy,
    choose_policies,
    parse_policy,
)


def scored_positions(windows: list[Window]) -> list[int]:
    return [position for window in windows for position in range(window.first_scored, window.end)]


@st.composite
def policies(draw: st.DrawFn) -> WindowPolicy:
    size = draw(st.integers(4, 40))
    kind = draw(st.sampled_from(["disjoint", "strided", "half", "document"]))
    if kind == "strided":
        return Strided(size, draw(st.integers(1, size - 1)))
    return {"disjoint": Disjoint(size), "half": HalfWindow(size), "document": WholeDocument()}[kind]


@given(policies(), st.integers(1, 300))
def test_no_policy_scores_a_position_twice_or_without_context(policy: WindowPolicy, num_ids: int) -> None:
    windows = policy.windows(num_ids)
    scored = scored_positions(windows)
    assert scored == sorted(set(scored))
    assert 0 not in scored, "the begin token is never scored"
    for index, window in enumerate(windows):
        assert window.window_id == index
        assert 0 <= window.start < window.first_scored < window.end <= num_ids
        assert policy.context is None or window.end - window.start <= policy.context


@given(st.integers(4, 40), st.data(), st.integers(1, 300))
def test_strided_windows_score_every_token_once_with_enough_context(
    size: int, data: st.DataObject, num_ids: int
) -> None:
    stride = data.draw(st.integers(1, size - 1))
    windows = Strided(size, stride).windows(num_ids)
    assert scored_positions(windows) == list(range(1, num_ids))
    for window in windows[1:]:
        assert window.first_scored - window.start >= size - stride


@given(st.integers(4, 40), st.integers(1, 300))
def test_disjoint_windows_leave_out_the_first_token_of_each_and_nothing_else(size: int, num_ids: int) -> None:
    scored = scored_positions(Disjoint(size).windows(num_ids))
    assert scored == [position for position in range(num_ids) if position % size]


def test_the_last_window_is_neither_dropped_nor_counted_twice() -> None:
    assert Disjoint(4).windows(10)[-1] == Window(window_id=2, start=8, end=10, first_scored=9)
    assert len(Disjoint(4).windows(9)) == 2, "a window of one id scores nothing"
    assert Strided(4, 2).windows(9)[-1] == Window(window_id=3, start=6, end=9, first_scored=8)
    assert len(Strided(4, 2).windows(8)) == 3, "the third window ends the document exactly"


def test_4097_ids_are_the_nine_windows_of_which_eight_score() -> None:
    windows = Disjoint(512).windows(4097)
    assert len(windows) == 8
    assert len(scored_positions(windows)) == 4088


def test_half_windows_score_what_llama_cpp_scores() -> None:
    """Chunks of n ids score n - n/2 - 1 tokens each after a begin token; the tail is dropped."""
    windows = HalfWindow(8).windows(8 * 3 + 7)
    assert [(w.start, w.first_scored, w.end) for w in windows] == [(0, 5, 8), (8, 13, 16), (16, 21, 24)]
    assert all(window.begin_replaces_first for window in windows)
    assert HalfWindow(8).windows(7) == []


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("disjoint", "disjoint:512"),
        ("disjoint:2048", "disjoint:2048"),
        ("strided", "strided:512:256"),
        ("strided:1024:100", "strided:1024:100"),
        ("half:512", "half:512"),
        ("document", "document"),
    ],
)
def test_a_policy_is_parsed_to_its_full_label(text: str, label: str) -> None:
    assert parse_policy(text).label == label
    assert parse_policy(label) == parse_policy(text)


def test_context_and_stride_fill_in_what_the_text_leaves_open() -> None:
    assert parse_policy("strided", context=1024).label == "strided:1024:512"
    assert parse_policy("strided", context=1024, stride=64).label == "strided:1024:64"
    assert parse_policy("half", context=256).label == "half:256"
    assert parse_policy("disjoint:128", context=1024).label == "disjoint:128"
    assert [policy.label for policy in choose_policies((), None, None)] == ["strided:512:256"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sliding", "unknown window policy 'sliding'; give disjoint"),
        ("disjoint:x", "unknown window policy"),
        ("disjoint:512:4", "unknown window policy"),
        ("strided:512", "unknown window policy"),
        ("disjoint:-4", "unknown window policy"),
        ("disjoint:3", "a context of 3 ids is too short"),
        ("strided:512:512", "stride 512 must be at least 1 and below the context 512"),
        ("strided:512:0", "stride 0 must be at least 1"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_policy(text)


def test_options_that_no_policy_reads_and_policies_given_twice_are_refused() -> None:
    with pytest.raises(InputError, match="a stride is given but no policy reads it"):
        choose_policies(("disjoint:512",), None, 64)
    with pytest.raises(InputError, match="a context is given but no policy reads it"):
        choose_policies(("document",), 512, None)
    with pytest.raises(InputError, match="'disjoint:512' is given twice"):
        choose_policies(("disjoint", "disjoint:512"), None, None)
