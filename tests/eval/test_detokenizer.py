"""Token ids to text: whole characters, stop strings that cross tokens, and damage that stays visible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.bundled import bundled_model_dir
from deepinfer.engine.errors import InputError
from deepinfer.eval.detokenizer import StopStrings, TextStream
from deepinfer.eval.tokenizer import TextTokenizer

TOKENIZER = TextTokenizer(bundled_model_dir(), bos_token_id=0, vocab_size=4096)
NO_STOPS = StopStrings(())
ANY_IDS = st.lists(st.integers(0, 4095), max_size=40)
ANY_STOPS = st.lists(st.text(alphabet="abé \n", min_size=1, max_size=4), min_size=1, max_size=3)


def ids_of(text: str) -> list[int]:
    """The ids of a text without the begin token."""
    ids: list[int] = TOKENIZER.encode(text, "test").token_ids[1:].tolist()
    return ids


def ids_of_bytes(data: bytes) -> list[int]:
    """One token for each byte."""
    single = {TOKENIZER.bytes_of(i): i for i in range(4096) if len(TOKENIZER.bytes_of(i)) == 1}
    return [single[data[i : i + 1]] for i in range(len(data))]


def pieces_of(token_ids: list[int], stops: StopStrings = NO_STOPS) -> list[str]:
    """What each token adds, and the rest at the end."""
    stream = TextStream(TOKENIZER, stops)
    return [*map(stream.push, token_ids), stream.finish()]


def run_until_stop(token_ids: list[int], stops: StopStrings) -> list[int]:
    """The ids that an engine emits when it asks after each token."""
    for end in range(1, len(token_ids) + 1):
        if stops.appear_in(TOKENIZER, token_ids[:end]):
            return token_ids[:end]
    return token_ids


@given(ANY_IDS)
def test_the_pieces_together_are_the_text_of_all_bytes(token_ids: list[int]) -> None:
    whole = b"".join(map(TOKENIZER.bytes_of, token_ids)).decode("utf-8", "replace")
    assert "".join(pieces_of(token_ids)) == whole


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_a_text_comes_back_and_is_never_shown_in_part(text: str) -> None:
    shown = ""
    for piece in pieces_of(ids_of_bytes(text.encode())):
        shown += piece
        assert text.startswith(shown)
    assert shown == text


def test_a_character_waits_for_its_last_byte() -> None:
    assert pieces_of(ids_of_bytes("a€".encode())) == ["a", "", "", "€", ""]


def test_a_character_that_never_ends_is_shown_as_damage() -> None:
    assert pieces_of(ids_of_bytes("a€".encode()[:-1])) == ["a", "", "", "�"]
    assert "".join(pieces_of(ids_of_bytes(b"\xffa\xc3b"))) == "�a�b"


def test_special_tokens_and_ids_without_an_entry_have_no_text() -> None:
    assert [TOKENIZER.bytes_of(token_id) for token_id in (0, 1, 2, 999_999)] == [b""] * 4
    assert "".join(pieces_of([0, *ids_of("ab"), 1])) == "ab"


@given(st.text(alphabet="abé \n", max_size=30), ANY_STOPS)
def test_the_text_ends_before_the_first_stop_string(text: str, texts: list[str]) -> None:
    stops = StopStrings(tuple(texts))
    emitted = run_until_stop(ids_of_bytes(text.encode()), stops)
    shown = "".join(pieces_of(emitted, stops))
    assert text.startswith(shown)
    assert not any(stop in shown for stop in texts)
    if any(stop in text for stop in texts):
        assert stops.appear_in(TOKENIZER, emitted)
        assert any(text[len(shown) :].startswith(stop) for stop in texts)
    else:
        assert emitted == ids_of_bytes(text.encode())
        assert shown == text


@given(ANY_IDS, ANY_STOPS)
def test_looking_at_the_tail_sees_what_the_whole_text_holds(token_ids: list[int], texts: list[str]) -> None:
    stops = StopStrings(tuple(texts))
    whole = b"".join(map(TOKENIZER.bytes_of, token_ids))
    appears = any(stop.encode() in whole for stop in texts)
    assert appears == stops.appear_in(TOKENIZER, run_until_stop(token_ids, stops))


def test_what_may_become_a_stop_string_is_held_back_and_then_given() -> None:
    stops = StopStrings(("\n\n",))
    assert pieces_of(ids_of_bytes(b"a\nb"), stops) == ["a", "", "\nb", ""]
    assert pieces_of(ids_of_bytes(b"a\n"), stops) == ["a", "", "\n"]
    assert pieces_of(ids_of_bytes(b"a\n\nb"), stops) == ["a", "", "", "", ""]


def test_of_two_stop_strings_the_one_that_begins_first_cuts() -> None:
    stops = StopStrings(("c", "abc"))  # both end at the same byte
    assert "".join(pieces_of(run_until_stop(ids_of_bytes(b"xabcd"), stops), stops)) == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "stop string is empty"), ("\ud800", "is not valid UTF-8")],
    ids=["empty", "lone"],
)
def test_a_stop_string_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        StopStrings(("x", text))
