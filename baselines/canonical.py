"""The bytes that are hashed, and the arrays that are locked.

Parquet files of two library versions differ in their bytes; digests are therefore taken over the columns.
Floats are hashed and compared as the bits they are: -0.0, NaN payloads and denormals included.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer.baselines.errors import InvalidSampleError, NonFiniteLogprobError

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

HOLE_BITS = 0x7FC00000
"""Bits of a position that was not scored. No scored value has them: a scored NaN is never locked."""

SCHEMA = "sample_id:string position:i32le token_id:i32le logprob:f32le"
_SAMPLE_FORM = b"deepinfer-sample/1 token_id:i32le logprob:f32le\0"
_BLOB_FORM = b"deepinfer-blob/1 " + SCHEMA.encode() + b"\0"
_ID_RANGE = np.iinfo(np.int32)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Sample:
    """Token ids and log-probabilities of one sample, row by row.

    Attributes:
        token_ids: [S] int32.
        logprobs: [S] float32, natural logarithm; the bits of a hole where a position was not scored.
    """

    token_ids: Int32Array
    logprobs: Float32Array

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.token_ids)

    @property
    def bits(self) -> npt.NDArray[np.uint32]:
        """[S] uint32, the log-probabilities as bits; the only safe way to compare them."""
        return self.logprobs.view(np.uint32)

    @property
    def scored(self) -> npt.NDArray[np.bool_]:
        """[S] bool, positions that are no holes."""
        mask: npt.NDArray[np.bool_] = self.bits != HOLE_BITS
        return mask

    def digest(self) -> str:
        """Hex sha256 over token ids and log-probability bits: equal exactly when every bit is."""
        length = len(self.token_ids).to_bytes(8, "little")
        columns = little_endian(self.token_ids), little_endian(self.logprobs)
        return hashlib.sha256(b"".join((_SAMPLE_FORM, length, *columns))).hexdigest()

    def nll(self) -> float:
        """Nats over the scored positions, correctly rounded; NaN if one of them is not finite."""
        scored = self.logprobs[self.scored]
        return 0.0 - math.fsum(scored.tolist()) if np.isfinite(scored).all() else math.nan


def little_endian(column: npt.NDArray[Any]) -> bytes:
    """The column's bytes in little-endian order."""
    if sys.byteorder == "little":
        return column.tobytes()
    return column.astype(column.dtype.newbyteorder("<")).tobytes()


def as_sample(token_ids: Any, logprobs: Any, scored: Any = None) -> Sample:
    """The arrays of one sample as they are locked.

    Args:
        token_ids: [S] integers.
        logprobs: [S] float32, or numbers that float32 holds exactly; natural logarithm.
        scored: [S] bool, positions that have a log-probability; None means all of them, except that position
            0 may be NaN, since nothing stands before it.

    Raises:
        InvalidSampleError: wrong shape or type, an id outside int32, a value that float32 cannot hold.
        NonFiniteLogprobError: a scored value is NaN or infinite.
    """
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        raise InvalidSampleError(f"token ids of shape {ids.shape} and type {ids.dtype}: give [S] integers")
    if ids.dtype != np.int32 and (ids.min() < _ID_RANGE.min or ids.max() > _ID_RANGE.max):
        raise InvalidSampleError(f"token ids from {ids.min()} to {ids.max()}: they must fit int32")
    values = _as_float32(np.asarray(logprobs))
    if scored is None and values.shape == ids.shape and np.isfinite(values).all():
        return Sample(token_ids=ids.astype(np.int32, copy=False), logprobs=values)
    mask = values.view(np.uint32) != HOLE_BITS if scored is None else np.asarray(scored, dtype=np.bool_)
    if values.shape != ids.shape or mask.shape != ids.shape:
        raise InvalidSampleError(
            f"{ids.shape} token ids, {values.shape} log-probabilities and {mask.shape} flags: give as many "
            "each"
        )
    if scored is None:
        mask[1:] = True
        mask[0] &= not np.isnan(values[0])
    bad = np.flatnonzero(mask & ~np.isfinite(values))
    if len(bad):
        raise NonFiniteLogprobError(
            f"position {bad[0]}: log-probability is {values[bad[0]]} ({len(bad)} such); a baseline of it "
            "means "
            "nothing, check the weights"
        )
    bits = np.where(mask, values.view(np.uint32), np.uint32(HOLE_BITS))
    return Sample(token_ids=ids.astype(np.int32), logprobs=bits.view(np.float32))


def _as_float32(values: npt.NDArray[Any]) -> Float32Array:
    if values.dtype == np.float32:
        return np.ascontiguousarray(values)
    if not np.issubdtype(values.dtype, np.floating):
        raise InvalidSampleError(f"log-probabilities of type {values.dtype}: give float32")
    narrow = values.astype(np.float32)
    if not np.array_equal(narrow.astype(values.dtype), values, equal_nan=True):
        raise InvalidSampleError(
            f"log-probabilities of type {values.dtype} that float32 cannot hold: baselines lock float32 "
            "bits, "
            "round them in one stated way before"
        )
    return narrow


def blob_digest(ids: Sequence[str], lengths: Sequence[int], columns: Iterable[npt.NDArray[Any]]) -> str:
    """Content name of a blob: hex sha256 over the schema, who owns which rows, and the columns' bytes.

    Args:
        ids: sample ids in row order.
        lengths: rows of each.
        columns: token_id int32 and logprob as uint32 bits, each [rows].
    """
    total = hashlib.sha256(_BLOB_FORM)
    for sample_id, length in zip(ids, lengths, strict=True):
        name = sample_id.encode("utf-8")
        total.update(len(name).to_bytes(8, "little") + name + length.to_bytes(8, "little"))
    for column in columns:
        total.update(little_endian(column))
    return total.hexdigest()
