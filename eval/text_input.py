"""Documents from text files: what is refused, what is kept as it stands, and what is said about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deepinfer.engine.errors import InputError
from deepinfer.eval.json_lines import decode_utf8, read_bytes, read_json_lines, require_sample_id
from deepinfer.eval.words import count_words


@dataclass(frozen=True, kw_only=True)
class Document:
    """One text to score, exactly as its author wrote it.

    Attributes:
        sample_id: unique name within a run.
        text: the text; never normalised, stripped or re-wrapped.
    """

    sample_id: str
    text: str

    @property
    def num_bytes(self) -> int:
        """Bytes of the text in UTF-8."""
        return len(self.text.encode("utf-8"))

    @property
    def num_words(self) -> int:
        """Words of the text, see :func:`deepinfer.eval.words.count_words`."""
        return count_words(self.text)


def read_documents(path: Path) -> list[Document]:
    """Read ``FILE.txt`` (one document, named by the file) or ``FILE.jsonl`` (lines ``{id, text}``).

    ``source`` and ``license`` may stand beside ``id`` and ``text``. CRLF line ends are kept and scored.

    Raises:
        InputError: anything product.md section 8 lists for text; names file, line and sample.
    """
    if path.suffix == ".txt":
        text = decode_utf8(read_bytes(path), str(path))
        return [Document(sample_id=path.stem, text=_checked_text(text, str(path), path.stem))]
    if path.suffix != ".jsonl":
        raise InputError(
            f"{path}: unknown kind of file; give FILE.jsonl with lines {{id, text}}, or FILE.txt"
        )
    documents = []
    seen: dict[str, str] = {}
    for line in read_json_lines(path, required={"id", "text"}, optional={"source", "license"}):
        sample_id = require_sample_id(line, seen)
        text = _checked_text(line.fields["text"], line.where, sample_id)
        documents.append(Document(sample_id=sample_id, text=text))
    return documents


def notes_on(documents: list[Document]) -> tuple[str, ...]:
    """Lines to show the user about text that is kept although it may surprise."""
    crlf = [document.sample_id for document in documents if "\r\n" in document.text]
    if not crlf:
        return ()
    return (f"{len(crlf)} document(s) with CRLF line ends, first {crlf[0]!r}: kept and scored as they stand",)


def _checked_text(text: object, where: str, sample_id: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{where}: sample {sample_id!r}: text must be a string, not {type(text).__name__}")
    if not text:
        raise InputError(
            f"{where}: sample {sample_id!r}: text is empty; there is nothing to score, remove it"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: sample {sample_id!r}: lone surrogate U+{ord(text[error.start]):04X} "
            f"at character {error.start}; such a text has no UTF-8 form, repair the escape"
        ) from None
    return text
