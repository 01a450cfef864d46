"""Text to token ids and back to bytes, without loss, and without tokens that the text did not ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from deepinfer.engine.api import Int32Array
from deepinfer.engine.errors import InputError
from deepinfer.eval.json_lines import read_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedText:
    """A text as ids, begin token first.

    Attributes:
        token_ids: [S] int32; position 0 is the begin token, the rest spell the text.
        token_bytes: [S] int32, UTF-8 bytes of the text that each token stands for; 0 for the begin token.
    """

    token_ids: Int32Array
    token_bytes: Int32Array


class TextTokenizer:
    """The byte-level tokenizer of a checkpoint folder.

    The begin token is added here, once; whatever the file's post-processor would add is not asked for.
    """

    def __init__(self, model_dir: Path, bos_token_id: int, vocab_size: int) -> None:
        """Read ``model_dir/tokenizer.json``.

        Raises:
            InputError: no such file, not a tokenizer, or one that does not belong to the model.
        """
        self._path = model_dir / "tokenizer.json"
        self._raw = read_bytes(self._path)
        try:
            self._tokenizer = Tokenizer.from_buffer(self._raw)
        except Exception as error:  # the library raises bare Exception for every damaged file
            raise InputError(
                f"{self._path}: is not a readable tokenizer ({error}); restore the file"
            ) from error
        if self._tokenizer.get_vocab_size() > vocab_size or self._tokenizer.id_to_token(bos_token_id) is None:
            raise InputError(
                f"{self._path}: {self._tokenizer.get_vocab_size()} entries do not fit the model's "
                f"{vocab_size} ids with begin token {bos_token_id}; use the tokenizer of this checkpoint"
            )
        self._bos_token_id = bos_token_id
        added = self._tokenizer.get_added_tokens_decoder()
        self._added_text = {token_id: token.content for token_id, token in added.items()}
        self._special = [token.content for token in added.values() if token.special]

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of ``tokenizer.json``."""
        return hashlib.sha256(self._raw).hexdigest()

    def encode(self, text: str, where: str) -> EncodedText:
        """The ids of a whole text, begin token first, in one piece: texts are never tokenized in parts.

        Args:
            text: the text as it stands.
            where: start of the message of an error, for example the sample's name.

        Raises:
            InputError: the text spells a special token (a begin token would count twice), or its tokens do
                not spell the text back byte for byte, so that its bytes could not be counted.
        """
        return self.encode_all([text], [where])[0]

    def encode_all(self, texts: Sequence[str], where: Sequence[str]) -> list[EncodedText]:
        """Each of several texts as ``encode`` gives it, tokenized on all cores.

        Raises:
            InputError: as ``encode``, for the first text that cannot be tokenized.
        """
        for text, name in zip(texts, where, strict=True):
            self._refuse_special(text, name)
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [
            self._checked(encoding.ids, text, name)
            for encoding, text, name in zip(encodings, texts, where, strict=True)
        ]

    def _refuse_special(self, text: str, where: str) -> None:
        for content in self._special:
            if content in text:
                raise InputError(
                    f"{where}: text holds the special token {content!r} at character {text.index(content)}; "
                    "remove it: the begin token is added once, by itself"
                )

    def _checked(self, ids: list[int], text: str, where: str) -> EncodedText:
        pieces = [self._bytes_of_id[token_id] for token_id in ids]
        if b"".join(pieces) != text.encode("utf-8"):
            raise InputError(
                f"{where}: the tokens do not spell this text back; the tokenizer is not byte-level"
            )
        return EncodedText(
            token_ids=np.array([self._bos_token_id, *ids], dtype=np.int32),
            token_bytes=np.array([0, *map(len, pieces)], dtype=np.int32),
        )

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes a token adds to a text: none for a special token, or for an id without an entry."""
        if self._added_text.get(token_id) in self._special:
            return b""
        return self._bytes_of_id.get(token_id, b"")

    @cached_property
    def _bytes_of_id(self) -> dict[int, bytes]:
        """The bytes each token stands for; a token may hold part of a character."""
        spelled = {}
        for token, token_id in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if token_id in self._added_text:
                spelled[token_id] = self._added_text[token_id].encode("utf-8")
            elif all(character in _BYTE_OF_CHARACTER for character in token):
                spelled[token_id] = bytes(_BYTE_OF_CHARACTER[character] for character in token)
            else:
                spelled[token_id] = (
                    b""  # no entry of a byte-level vocabulary: encode() then misses these bytes
                )
        return spelled


def _byte_alphabet() -> dict[str, int]:
    """The printable character by which byte-level vocabularies write each byte.

    Printable Latin-1 bytes stand for themselves; the others are numbered upward from U+0100, in byte order.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(0x100 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_alphabet()
