"""Typed reading of a JSON document into dataclass fields; problems are collected, not raised."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from deepinfer.engine.errors import ConfigError

MAX_INTEGER = 2**63 - 1
"""Largest integer a configuration may hold: shapes, ids and row counts are signed 64-bit everywhere else."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object stored in the file ``path``.

    Raises:
        ConfigError: the file is absent or unreadable, is not UTF-8, is not JSON, names a key twice, or holds
            something other than an object; the message starts with the path.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    try:
        document = json.loads(text, object_pairs_hook=_object_without_duplicates)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}: not valid JSON at line {error.lineno} column {error.colno} ({error.msg})"
        ) from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must hold a JSON object, holds {json_type(document)}")
    return document


def json_type(value: object) -> str:
    """Name the JSON type of ``value`` for an error message."""
    names: list[tuple[type | tuple[type, ...], str]] = [
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        (list, "an array"),
        (dict, "an object"),
    ]
    for kind, name in names:
        if isinstance(value, kind):
            return name
    return "null"


def read_fields(
    cls: type,
    source: Mapping[str, object],
    *,
    where: str,
    required: Collection[str],
    skip: Collection[str],
    problems: list[str],
) -> dict[str, Any]:
    """Read the fields of the dataclass ``cls`` that are keys of ``source``.

    Args:
        cls: a dataclass whose annotations are int, float, bool, ``int | None`` or ``tuple[int, ...]``.
        source: the JSON object.
        where: its path inside the document, such as ``text_config.``; put before the key in messages.
        required: keys that must be there although the field has a default.
        skip: fields that the caller fills itself.
        problems: receives one sentence for each missing key and each value of a wrong type.

    Returns:
        The values that could be read, ready to be passed as keyword arguments.
    """
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        name = field.name
        if name in skip:
            continue
        if name not in source:
            if field.default is dataclasses.MISSING or name in required:
                problems.append(f"missing key {where}{name}")
            continue
        wanted, convert = _converter(hints[name])
        try:
            values[name] = convert(source[name])
        except TypeError:
            problems.append(f"{where}{name} must be {wanted}, is {show(source[name])}")
    return values


def show(value: object) -> str:
    """Write ``value`` as JSON, cut to a length that fits a one-line message."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {json.dumps(twice)} appears twice")
    return document


def _converter(hint: Any) -> tuple[str, Callable[[object], object]]:
    if hint is bool:
        return "true or false", _boolean
    if hint is int:
        return "an integer", _integer
    if hint is float:
        return "a finite number", _number
    if hint == tuple[int, ...]:
        return "an array of integers", _integers
    assert set(get_args(hint)) == {int, type(None)}, f"no reader for {hint}"
    return "an integer or null", _integer_or_none


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INTEGER:
        raise TypeError
    return value


def _integer_or_none(value: object) -> int | None:
    return None if value is None else _integer(value)


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e300:
        raise TypeError
    if not math.isfinite(value):
        raise TypeError
    return float(value)


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(_integer(item) for item in value)
