"""Prompts from the command line, a text file or a token file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepinfer.engine.errors import InputError
from deepinfer.eval.json_lines import decode_utf8
from deepinfer.eval.score import read_token_file
from deepinfer.eval.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What one request continues.

    Attributes:
        prompt_id: unique within a call.
        token_ids: begin token included, if there is one.
        text: the text they came from, None if they were given as ids.
    """

    prompt_id: str
    token_ids: tuple[int, ...]
    text: str | None = None


def text_prompt(text: str, where: str, tokenizer: TextTokenizer) -> Prompt:
    """A text as it stands, begin token first; an empty one is the begin token alone.

    Args:
        text: the text; a final newline belongs to it.
        where: start of the message of an error, and the prompt's name.
        tokenizer: of the model.

    Raises:
        InputError: a lone surrogate, or what ``TextTokenizer.encode`` refuses.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: not valid UTF-8 at character {error.start}; give the text as UTF-8"
        ) from None
    ids = tokenizer.encode(text, where).token_ids.tolist()
    return Prompt(prompt_id=where, token_ids=tuple(ids), text=text)


def file_prompt(raw: bytes, where: str, tokenizer: TextTokenizer) -> Prompt:
    """The whole content of a file as one prompt.

    Raises:
        InputError: empty, invalid UTF-8, a byte order mark, or what `text_prompt` refuses.
    """
    if not raw:
        raise InputError(f"{where}: is empty; there is nothing to continue")
    return text_prompt(decode_utf8(raw, where), where, tokenizer)


def token_prompts(path: Path, vocab_size: int) -> list[Prompt]:
    """One prompt for each line ``{id, token_ids}``, ids taken as they stand.

    Raises:
        InputError: what ``read_token_file`` refuses; nothing is run then.
    """
    sequences = read_token_file(path, vocab_size)
    return [Prompt(prompt_id=name, token_ids=tuple(ids.tolist())) for name, ids in sequences.items()]
