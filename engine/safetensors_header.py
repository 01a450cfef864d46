"""Reading and checking the header of one safetensors file, without torch and without touching the payload."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from deepinfer.engine.errors import CheckpointError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""The limit that the format itself sets; a flipped bit in the length must not become a huge read."""
_DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies.

    Attributes:
        file: the safetensors file.
        dtype: its safetensors dtype, such as ``BF16``.
        shape: its stored shape.
        start: first byte, counted from the beginning of the file.
        size_bytes: payload bytes.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


def read_safetensors_header(file: Path) -> dict[str, StoredTensor]:
    """Return every tensor of ``file`` by name.

    Raises:
        CheckpointError: the file cannot be read, is cut short or too long, or its header is not what the
            format demands: UTF-8 JSON, known dtypes, sizes that fit shapes, and payloads that follow one
            another from the first byte to the last without overlap or gap.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{file}: not a whole safetensors file: {size} bytes, but its header claims {length}; "
                    "copy or download it again"
                )
            raw = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror or error})") from None
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged header ({error}); copy or download it again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: damaged header (not a JSON object); copy or download it again")
    header.pop("__metadata__", None)
    payload = _LENGTH_BYTES + length
    tensors = {name: _entry(file, name, value, payload) for name, value in header.items()}
    _check_coverage(file, tensors, payload, size)
    return tensors


def _entry(file: Path, name: str, value: object, payload: int) -> StoredTensor:
    problem = "is not an object with dtype, shape and data_offsets"
    if isinstance(value, dict):
        dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
            problem = f"has the unknown dtype {dtype!r}"
        elif not _is_size_list(shape):
            problem = f"has the impossible shape {shape!r}"
        elif not _is_size_list(offsets) or len(offsets) != 2:
            problem = f"has the impossible data_offsets {offsets!r}"
        elif offsets[1] - offsets[0] != math.prod(shape) * _DTYPE_BYTES[dtype]:
            problem = f"spans {offsets[1] - offsets[0]} bytes, which is not {dtype} {shape}"
        else:
            return StoredTensor(file, dtype, tuple(shape), payload + offsets[0], offsets[1] - offsets[0])
    raise CheckpointError(f"{file}: damaged header ({name} {problem}); copy or download it again")


def _is_size_list(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value
    )


def _check_coverage(file: Path, tensors: dict[str, StoredTensor], payload: int, size: int) -> None:
    end = payload
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size_bytes)):
        if tensor.start != end:
            what = "overlaps the tensor before it" if tensor.start < end else "leaves a gap before it"
            raise CheckpointError(f"{file}: damaged header ({name} {what}); copy or download it again")
        end = tensor.start + tensor.size_bytes
    if end != size:
        what = "cut short" if size < end else "too long"
        raise CheckpointError(
            f"{file}: {what}: {size} bytes, its header describes {end}; copy or download it again"
        )


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name appears twice")
    return document
