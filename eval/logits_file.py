"""A safetensors file of logits, written one sample at a time: a run's logits need not fit in memory.

The layout is that of the safetensors format: an 8-byte little-endian header length, a JSON header that may
end in spaces, then the tensors. The header comes first but is known last, since a failing sample has no
tensor; room for the header of all samples is kept, and what it does not need is filled with spaces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from deepinfer.engine.api import Float32Array
from deepinfer.engine.errors import InputError
from deepinfer.eval.publish import TEMPORARY_PREFIX, removed_on_failure, rename_durably


class LogitsFile:
    """Context manager; the file appears under its name when the block ends well, and not at all otherwise."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Name the file and the tensors that may come.

        Args:
            path: the file; one that is there is replaced at the end.
            shapes: name -> [rows, vocabulary], in the order in which the tensors will come.

        Raises:
            InputError: a name that the format reserves.
        """
        if "__metadata__" in shapes:
            raise InputError("sample id '__metadata__' is reserved in safetensors files; rename the sample")
        self.path = path
        self._temporary = path.with_name(TEMPORARY_PREFIX + path.name)
        self._shapes = dict(shapes)
        self._written: dict[str, tuple[int, int]] = {}
        self._header_bytes = (len(_header(shapes)) + 7) // 8 * 8

    def __enter__(self) -> Self:
        """Open the temporary file.

        Raises:
            RunError: it cannot be written.
        """
        with removed_on_failure(self._temporary):
            self._stream = self._temporary.open("wb")
            self._stream.write(self._header_bytes.to_bytes(8, "little") + b" " * self._header_bytes)
        return self

    def add(self, name: str, logits_SV: Float32Array) -> None:
        """Append one tensor, shaped as announced; each name once, in order, and any may be left out."""
        assert logits_SV.shape == self._shapes[name], "the tensor has the announced shape"
        assert name not in self._written, "each sample has one tensor"
        with removed_on_failure(self._temporary):
            self._stream.write(np.ascontiguousarray(logits_SV).astype("<f4", copy=False).tobytes())
        self._written[name] = self._shapes[name]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the header and publish, or remove the temporary file."""
        with removed_on_failure(self._temporary):
            with self._stream:
                if kind is None:
                    self._stream.seek(8)
                    self._stream.write(_header(self._written).ljust(self._header_bytes))
                    self._stream.flush()
                    os.fsync(self._stream.fileno())
            if kind is None:
                rename_durably(self._temporary, self.path)
            else:
                self._temporary.unlink(missing_ok=True)


def _header(shapes: Mapping[str, tuple[int, int]]) -> bytes:
    """JSON header of float32 tensors that follow one another in this order."""
    entries = {}
    start = 0
    for name, (num_rows, vocab_size) in shapes.items():
        end = start + 4 * num_rows * vocab_size
        entries[name] = {"dtype": "F32", "shape": [num_rows, vocab_size], "data_offsets": [start, end]}
        start = end
    return json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
