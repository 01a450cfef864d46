"""Emitted token ids to text, token by token: whole characters only, and nothing from a stop string on.

A token may hold part of a character, and a stop string may begin in one token and end in another. Both are
settled on bytes: UTF-8 never matches in the middle of a character, so a stop string stands in the bytes
exactly where it stands in the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from deepinfer.engine.errors import InputError
from deepinfer.eval.tokenizer import TextTokenizer


@dataclass(frozen=True)
class StopStrings:
    """Texts that end a sample; the prompt is never searched.

    Attributes:
        texts: the stop strings; may be none.

    Raises:
        InputError: a stop string that is empty or has no UTF-8 form.
    """

    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what could never be found, and what would be found everywhere."""
        for text in self.texts:
            if not text:
                raise InputError("stop string is empty; give at least one character")
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                raise InputError(f"stop string {text!r} is not valid UTF-8; repair it") from None

    @property
    def _patterns(self) -> list[bytes]:
        return [text.encode("utf-8") for text in self.texts]

    def find(self, data: bytes) -> int | None:
        """Where the stop string that begins first begins, or None."""
        found = [place for pattern in self._patterns if (place := data.find(pattern)) >= 0]
        return min(found, default=None)

    def num_unsettled(self, data: bytes) -> int:
        """Length of the longest end of ``data`` with which a stop string begins."""
        return max(
            (
                length
                for pattern in self._patterns
                for length in range(1, len(pattern))
                if data.endswith(pattern[:length])
            ),
            default=0,
        )

    def appear_in(self, tokenizer: TextTokenizer, token_ids: Sequence[int]) -> bool:
        """Whether a stop string ends in the last token.

        Asked after each token, as ``GenerateRequest.should_stop`` is, this says whether one has appeared at
        all. Only as many last tokens are decoded as a stop string can reach.
        """
        if not token_ids or not self.texts:
            return False
        tail = tokenizer.bytes_of(token_ids[-1])
        reach = len(tail) + max(map(len, self._patterns)) - 1
        for token_id in reversed(token_ids[:-1]):
            if len(tail) >= reach:
                break
            tail = tokenizer.bytes_of(token_id) + tail
        return self.find(tail) is not None


class TextStream:
    """The text of one sample as its tokens come; the pieces together are the final text.

    Bytes that are no UTF-8 become U+FFFD, by the rule of ``bytes.decode(errors="replace")``, and special
    tokens have no text.
    """

    def __init__(self, tokenizer: TextTokenizer, stops: StopStrings) -> None:
        """Begin an empty text."""
        self._tokenizer, self._stops = tokenizer, stops
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        self._has_stopped = False

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that no later token can change any more."""
        if self._has_stopped:
            return ""
        self._held += self._tokenizer.bytes_of(token_id)
        end = self._stops.find(self._held)
        self._has_stopped = end is not None
        if end is None:
            end = len(self._held) - self._stops.num_unsettled(self._held)
        settled, self._held = self._held[:end], b"" if self._has_stopped else self._held[end:]
        return self._decoder.decode(settled)

    def finish(self) -> str:
        """End the text; returns what was held back, because it might have become a stop string."""
        rest, self._held = self._held, b""
        return self._decoder.decode(rest, final=True)
