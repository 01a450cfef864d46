"""Immutable parquet files of many samples each, named by their content and read by row range.

One file a sample would cost 0.6 ms a read. The name is the canonical digest; the ledger also knows the sha256
of the file as the first publisher wrote it, so that every flipped byte is found.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepinfer.baselines.canonical import SCHEMA, Float32Array, Int32Array, Sample, blob_digest
from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import DamagedError

MAX_ROWS = 1 << 18
"""Rows of a blob at most: 2 MB in memory a column pair, about 10 ms to read and check."""

_ROW_GROUP = 1 << 16
_NUM_CACHED = 4


class BlobRef(NamedTuple):
    """What the ledger knows of a blob: content name, sha256 of the file, bytes of the file, rows."""

    digest: str
    sha256: str
    size_bytes: int
    num_rows: int


@dataclass(frozen=True, eq=False, slots=True)
class EncodedBlob:
    """A blob that is not published yet.

    Attributes:
        digest: its content name.
        content: bytes of the parquet file.
        starts: first row of each sample, in the order given.
        num_rows: rows of all.
    """

    digest: str
    content: bytes
    starts: tuple[int, ...]
    num_rows: int


class DecodedBlob(NamedTuple):
    """Columns of a blob: [rows] int32 token ids and [rows] float32 log-probabilities."""

    token_ids: Int32Array
    logprobs: Float32Array


def encode_blob(ids: Sequence[str], samples: Sequence[Sample]) -> EncodedBlob:
    """Pack samples into one parquet file; the same samples give the same name on any machine."""
    lengths = [len(sample) for sample in samples]
    token_ids = np.concatenate([sample.token_ids for sample in samples])
    logprobs = np.concatenate([sample.logprobs for sample in samples])
    # Through Arrow arrays only: Python floats quieten NaNs, and pandas turns them into nulls.
    table = pa.table(
        {
            "sample_id": pa.array(ids, type=pa.string()).take(np.repeat(np.arange(len(ids)), lengths)),
            "position": pa.array(np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])),
            "token_id": pa.array(token_ids),
            "logprob": pa.array(logprobs),
        }
    ).replace_schema_metadata({"deepinfer": SCHEMA, "bits": "ieee754-le"})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["sample_id", "token_id"],  # type: ignore[arg-type]
        use_byte_stream_split=["logprob"],  # type: ignore[arg-type]
        write_page_checksum=True,
        row_group_size=_ROW_GROUP,
    )
    return EncodedBlob(
        digest=blob_digest(ids, lengths, [token_ids, logprobs.view(np.uint32)]),
        content=sink.getvalue().to_pybytes(),
        starts=tuple(np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(int).tolist()),
        num_rows=sum(lengths),
    )


class BlobFolder:
    """The blobs of one store."""

    def __init__(self, folder: Path, temporary_folder: Path, disk: Disk) -> None:
        """Nothing is read yet."""
        self._folder = folder
        self._temporary = temporary_folder
        self._disk = disk
        self._cached: OrderedDict[str, DecodedBlob] = OrderedDict()

    def path(self, digest: str) -> Path:
        """Where the blob of that name lies."""
        return self._folder / digest[:2] / f"{digest}.parquet"

    def publish(self, blob: EncodedBlob) -> BlobRef:
        """Make a blob appear whole; a blob that is there already stays as its first publisher wrote it.

        Raises:
            OSError: the system failed; no part of it is visible.
            DamagedError: a file of that name exists and is not that content.
        """
        path = self.path(blob.digest)
        self._disk.make_folder(path.parent)
        content = blob.content
        if not self._disk.publish(path, content, self._temporary):
            content = self._disk.read(path)
            decode(content, path, blob.digest)
        digest = hashlib.sha256(content).hexdigest()
        return BlobRef(blob.digest, digest, len(content), blob.num_rows)

    def rows(self, ref: BlobRef, start: int, count: int) -> Sample:
        """Rows ``start`` to ``start + count`` of a blob, checked against everything the ledger knows of it.

        Raises:
            DamagedError: missing, truncated, or a flipped bit.
        """
        decoded = self._cached.get(ref.digest)
        if decoded is None:
            decoded = decode(self.read_verified(ref), self.path(ref.digest))
            self._cached[ref.digest] = decoded
            while len(self._cached) > _NUM_CACHED:
                self._cached.popitem(last=False)
        else:
            self._cached.move_to_end(ref.digest)
        if start < 0 or start + count > len(decoded.token_ids):
            raise DamagedError(str(self.path(ref.digest)), f"has no rows {start} to {start + count}")
        rows = slice(start, start + count)
        return Sample(token_ids=decoded.token_ids[rows], logprobs=decoded.logprobs[rows])

    def read_verified(self, ref: BlobRef) -> bytes:
        """The file's bytes, which are those that were published.

        Raises:
            DamagedError: they are not, or the file is gone.
        """
        path = self.path(ref.digest)
        try:
            content = self._disk.read(path)
        except FileNotFoundError:
            raise DamagedError(str(path), "is missing") from None
        if hashlib.sha256(content).hexdigest() != ref.sha256:
            raise DamagedError(str(path), "does not have the sha256 that the ledger recorded")
        return content


def decode(content: bytes, path: Path, expected_digest: str | None = None) -> DecodedBlob:
    """Columns of a parquet file, page checksums verified; with a digest, also that the content has that name.

    Raises:
        DamagedError: not such a file, or another content.
    """
    columns = None if expected_digest else ["token_id", "logprob"]
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        table = file.read(columns=columns, use_threads=False)
        found = DecodedBlob(_numpy(table, "token_id", np.int32), _numpy(table, "logprob", np.float32))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DamagedError(str(path), f"is not a blob ({' '.join(str(error).split())})") from None
    if expected_digest is not None and _digest_of(table, found) != expected_digest:
        raise DamagedError(str(path), "does not hold the content that its name promises")
    return found


def _digest_of(table: pa.Table, found: DecodedBlob) -> str:
    ids: list[Any] = table.column("sample_id").to_pylist()
    starts = np.flatnonzero(_numpy(table, "position", np.int32) == 0).tolist()
    lengths = np.diff([*starts, len(ids)]).tolist()
    names = [str(ids[start]) for start in starts]
    return blob_digest(names, lengths, [found.token_ids, found.logprobs.view(np.uint32)])


def _numpy(table: pa.Table, name: str, dtype: Any) -> Any:
    """A column without nulls as it lies in memory: no conversion may touch a bit."""
    column = table.column(name)
    array = column.combine_chunks()
    if column.null_count:
        raise ValueError(f"column {name} holds nulls")
    if array.type != pa.from_numpy_dtype(dtype):
        raise ValueError(f"column {name} is {array.type}, not {np.dtype(dtype)}")
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    # not to_numpy, which imports pandas if it is there: most of a second
    return np.frombuffer(memoryview(buffer), dtype, len(array), array.offset * array.type.bit_width // 8)
