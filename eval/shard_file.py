"""One parquet shard: the rows of a group of finished samples, bits preserved, damage detected.

Columns go from numpy to Arrow and back without a detour through Python floats or pandas, which would change
NaN bits. A shard is named by its own sha256, so it can be checked before any manifest exists.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deepinfer.engine.errors import RunError
from deepinfer.eval.publish import digest_of
from deepinfer.eval.rows import SampleRows

_METADATA_KEY = b"deepinfer"


@dataclass(frozen=True, kw_only=True)
class SampleOutcome:
    """What became of one sample: rows under every policy, or the reason why there are none."""

    sample_id: str
    rows: tuple[SampleRows, ...] = ()
    failure: str | None = None

    @property
    def num_rows(self) -> int:
        """Rows over all policies."""
        return sum(map(len, self.rows))


def encode_shard(outcomes: Sequence[SampleOutcome], metadata: dict[str, Any]) -> bytes:
    """A parquet file of the outcomes; ``metadata`` and the failures stand in its key-value metadata."""
    tables = [rows for outcome in outcomes for rows in outcome.rows]
    num_top = next((rows.top_ids.shape[1] for rows in tables if rows.top_ids is not None), 0)
    note = {
        **metadata,
        "num_top": num_top,
        "samples": [{"sample_id": o.sample_id, "failure": o.failure} for o in outcomes],
    }
    columns: dict[str, pa.Array[Any]] = {
        "sample_id": _repeated([rows.sample_id for rows in tables], tables),
        "policy": _repeated([rows.policy for rows in tables], tables),
        "position": pa.array(_joined([np.arange(len(rows), dtype=np.int32) for rows in tables], np.int32)),
        "token_id": pa.array(_joined([rows.token_id for rows in tables], np.int32)),
        "logprob": pa.array(_joined([rows.logprob for rows in tables], np.float32)),
        "rank": pa.array(_joined([rows.rank for rows in tables], np.int32)),
        "window_id": pa.array(_joined([rows.window_id for rows in tables], np.int32)),
        "valid": pa.array(_joined([rows.valid for rows in tables], np.bool_)),
    }
    if num_top:
        top_ids = _joined([rows.top_ids for rows in tables], np.int32).reshape(-1)
        top_logprobs = _joined([rows.top_logprobs for rows in tables], np.float32).reshape(-1)
        columns["top_ids"] = pa.FixedSizeListArray.from_arrays(pa.array(top_ids), num_top)
        columns["top_logprobs"] = pa.FixedSizeListArray.from_arrays(pa.array(top_logprobs), num_top)
    table = pa.table(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(note, ensure_ascii=False)})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["sample_id", "policy", "window_id", "token_id", "rank"],  # type: ignore[arg-type]
        use_byte_stream_split=["logprob"],  # type: ignore[arg-type]
        write_page_checksum=True,
    )
    return sink.getvalue().to_pybytes()


def shard_name(index: int, content: bytes) -> str:
    """File name of a shard: its number for the eye, its digest for the check."""
    return f"shard-{index:05d}-{digest_of(content)[:32]}.parquet"


def read_shard(path: Path) -> tuple[list[SampleOutcome], dict[str, Any]]:
    """Outcomes and metadata of a shard.

    Raises:
        RunError: unreadable, truncated, a flipped bit, or rows that are not those of whole samples.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); check the run folder") from error
    if digest_of(content)[:32] != path.stem.rsplit("-", 1)[-1]:
        raise RunError(
            f"{path}: damaged (its bytes do not have the digest in its name); "
            "delete it and manifest.json, then run again"
        )
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        table = file.read()
        note = json.loads((table.schema.metadata or {})[_METADATA_KEY])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise RunError(f"{path}: is not a shard of a run ({error}); delete it and run again") from error
    return _outcomes_of(path, table, note), note


def _outcomes_of(path: Path, table: pa.Table, note: dict[str, Any]) -> list[SampleOutcome]:
    columns = {
        name: _to_numpy(table.column(name), note["num_top"])
        for name in table.column_names
        if name not in ("sample_id", "policy")
    }
    sample_ids: list[Any] = table.column("sample_id").to_pylist()
    policies: list[Any] = table.column("policy").to_pylist()
    bounds = sorted({0, *np.flatnonzero(columns["position"] == 0).tolist(), len(table)})
    found: dict[str, list[SampleRows]] = {sample["sample_id"]: [] for sample in note["samples"]}
    for start, end in pairwise(bounds):
        key = (sample_ids[start], policies[start])
        one_sample = set(zip(sample_ids[start:end], policies[start:end], strict=True)) == {key}
        counted = np.array_equal(columns["position"][start:end], np.arange(end - start, dtype=np.int32))
        if key[0] not in found or not one_sample or not counted:
            raise RunError(f"{path}: rows {start} to {end} are not one whole sample; run into a new folder")
        found[key[0]].append(
            SampleRows(
                sample_id=key[0],
                policy=key[1],
                **{name: column[start:end] for name, column in columns.items() if name != "position"},
            )
        )
    return [
        SampleOutcome(sample_id=s["sample_id"], rows=tuple(found[s["sample_id"]]), failure=s["failure"])
        for s in note["samples"]
    ]


def _repeated(names: Sequence[str], tables: Sequence[SampleRows]) -> pa.Array[Any]:
    repeated = [name for name, rows in zip(names, tables, strict=True) for _ in range(len(rows))]
    return pa.array(repeated, type=pa.string())


def _joined(columns: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(columns) if columns else np.empty(0, dtype=dtype)


def _to_numpy(column: pa.ChunkedArray[Any], num_top: int) -> Any:
    array: Any = column.combine_chunks()
    if pa.types.is_fixed_size_list(array.type):
        return np.asarray(array.flatten()).reshape(-1, num_top)
    return array.to_numpy(zero_copy_only=False)
