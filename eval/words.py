"""How many words a text has: the divisor of word perplexity."""

from __future__ import annotations

import re

# Scripts without spaces whose characters count as words: kana, Han with its extensions, half-width kana.
_SPACELESS = re.compile(
    "[\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff]"
)


def count_words(text: str) -> int:
    """Number of words: runs between whitespace, except that every Han or kana character is a word of its own.

    For text without such characters this is the published convention of splitting at whitespace. Leading and
    trailing whitespace adds nothing and an empty text has no word, where a plain ``re.split`` reports one.
    """
    return sum(_words_in_run(run) for run in text.split())


def _words_in_run(run: str) -> int:
    pieces = _SPACELESS.split(run)
    if len(pieces) == 1:
        return 1
    between = sum(any(character.isalnum() for character in piece) for piece in pieces)
    return len(pieces) - 1 + between
