"""Strict JSON lines: one object a line, known fields only, errors that name the line."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class JsonLine:
    """One object of a JSON lines file.

    Attributes:
        where: ``FILE:LINE``, the start of every message about it.
        fields: its members.
    """

    where: str
    fields: dict[str, Any]


def decode_utf8(raw: bytes, where: str) -> str:
    """Decode bytes as UTF-8 without changing line ends.

    Raises:
        InputError: invalid UTF-8, or a byte order mark at the start.
    """
    if raw.startswith(_BYTE_ORDER_MARK):
        raise InputError(
            f"{where}: starts with a byte order mark, which would be scored as text; save without it"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: invalid UTF-8 at byte {error.start} (0x{raw[error.start]:02x}); "
            "convert the file to UTF-8"
        ) from None


def read_bytes(path: Path) -> bytes:
    """The file's bytes; an unreadable file is an :class:`InputError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def read_json_lines(
    path: Path, required: Collection[str], optional: Collection[str] = ()
) -> Iterator[JsonLine]:
    """Yield the objects of a file, in order.

    Only the newline byte ends a line: U+2028 and its kin belong to the text. A final newline is allowed.

    Raises:
        InputError: unreadable file, byte order mark, invalid UTF-8, blank line, bad JSON, not an object,
            a member twice, an unknown field, a missing field, or no line at all.
    """
    lines = read_bytes(path).split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise InputError(f"{path}: is empty; give one JSON object a line")
    for number, raw in enumerate(lines, start=1):
        where = f"{path}:{number}"
        yield JsonLine(where=where, fields=_parse_object(decode_utf8(raw, where), where, required, optional))


def _parse_object(
    line: str, where: str, required: Collection[str], optional: Collection[str]
) -> dict[str, Any]:
    if not line.strip():
        raise InputError(f"{where}: blank line; remove it")

    def no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{where}: field {twice!r} is given twice; keep one")
        return members

    try:
        parsed = json.loads(line, object_pairs_hook=no_repeats)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: bad JSON at column {error.colno} ({error.msg}); one object a line"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        raise InputError(f"{where}: JSON that cannot be read ({error}); one flat object a line") from None
    if not isinstance(parsed, dict):
        raise InputError(f"{where}: is not a JSON object; write {{{', '.join(sorted(required))}}}")
    for name in parsed:
        if name not in required and name not in optional:
            known = ", ".join([*sorted(required), *sorted(optional)])
            raise InputError(f"{where}: unknown field {name!r}; the fields are {known}")
    for name in sorted(required):
        if name not in parsed:
            raise InputError(f"{where}: field {name!r} is missing; add it")
    return parsed


def require_sample_id(line: JsonLine, seen: dict[str, str]) -> str:
    """The line's ``id``, checked and noted in ``seen`` (id -> where it stood).

    Raises:
        InputError: not a non-empty printable string, or given before.
    """
    sample_id = line.fields["id"]
    if not isinstance(sample_id, str) or not sample_id:
        raise InputError(f"{line.where}: id must be a non-empty string, not {sample_id!r}; quote it")
    if not sample_id.isprintable():
        raise InputError(f"{line.where}: id {sample_id!r} holds unprintable characters; rename the sample")
    if sample_id in seen:
        raise InputError(f"{line.where}: id {sample_id!r} was given at {seen[sample_id]}; ids must be unique")
    seen[sample_id] = line.where
    return sample_id
