from __future__ import annotations

import pytest

from deepinfer.eval.words import count_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", 0, id="an empty text has no word"),
        pytest.param(" \n\t ", 0, id="whitespace has no word"),
        pytest.param("two words\n", 2, id="a trailing newline adds none"),
        pytest.param("  it's -- a  test.", 4, id="any run between whitespace is one"),
        pytest.param("漢字かな", 4, id="each Han or kana character is one"),
        pytest.param("CGIスクリプト、と SSI。", 8, id="mixed scripts, punctuation adds none"),
        pytest.param("안녕하세요 세계", 2, id="Korean separates words by spaces"),
        pytest.param("𠀀", 1, id="beyond the basic plane"),
    ],
)
def test_words_are_counted(text: str, expected: int) -> None:
    assert count_words(text) == expected
