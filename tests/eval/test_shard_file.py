from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepinfer.engine.errors import RunError
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.shard_file import SampleOutcome, encode_shard, read_shard, shard_name

# Quiet and signalling NaNs with payloads and signs, both zeros, a subnormal, both infinities, a plain number.
BITS = np.array(
    [0x7FC00000, 0x7F800001, 0xFFC12345, 0xFF800001, 0x80000000, 0, 1, 0x7F800000, 0xFF800000, 0xC0490FDB],
    dtype=np.uint32,
)


def rows(sample_id: str, policy: str = "document", num_top: int = 0, shift: int = 0) -> SampleRows:
    num_ids = len(BITS)
    return SampleRows(
        sample_id=sample_id,
        policy=policy,
        token_id=np.arange(num_ids, dtype=np.int32) + shift,
        logprob=np.roll(BITS, shift).view(np.float32),
        rank=np.arange(num_ids, dtype=np.int32) * 3,
        window_id=np.zeros(num_ids, dtype=np.int32),
        valid=np.arange(num_ids) > 0,
        top_ids=np.tile(np.arange(num_top, dtype=np.int32), (num_ids, 1)) if num_top else None,
        top_logprobs=np.tile(np.roll(BITS, 1).view(np.float32)[:, None], (1, num_top)) if num_top else None,
    )


def store(folder: Path, outcomes: list[SampleOutcome]) -> Path:
    content = encode_shard(outcomes, {"run": "r"})
    path = folder / shard_name(3, content)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_every_bit_of_every_column_comes_back(tmp_path: Path, num_top: int) -> None:
    tables = [
        rows("a", "document", num_top),
        rows("a", "half:8", num_top, 2),
        rows("b", "document", num_top, 5),
    ]
    given = [
        SampleOutcome(sample_id="a", rows=tuple(tables[:2])),
        SampleOutcome(sample_id="gone", failure="too long"),
        SampleOutcome(sample_id="b", rows=(tables[2],)),
    ]
    found, note = read_shard(store(tmp_path, given))
    assert note["run"] == "r"
    assert [(o.sample_id, o.failure) for o in found] == [("a", None), ("gone", "too long"), ("b", None)]
    back = [table for outcome in found for table in outcome.rows]
    for table, original in zip(back, tables, strict=True):
        assert (table.sample_id, table.policy) == (original.sample_id, original.policy)
        assert table.logprob_bits.tolist() == original.logprob_bits.tolist()
        assert table.valid.tolist() == original.valid.tolist()
        assert table.digest == original.digest


def test_the_columns_are_those_of_the_format(tmp_path: Path) -> None:
    schema = pq.read_schema(store(tmp_path, [SampleOutcome(sample_id="a", rows=(rows("a", num_top=2),))]))
    types = {field.name: field.type for field in schema}
    assert types == {
        "sample_id": pa.string(),
        "policy": pa.string(),
        "position": pa.int32(),
        "token_id": pa.int32(),
        "logprob": pa.float32(),
        "rank": pa.int32(),
        "window_id": pa.int32(),
        "valid": pa.bool_(),
        "top_ids": pa.list_(pa.int32(), 2),
        "top_logprobs": pa.list_(pa.float32(), 2),
    }


def test_an_invalid_log_probability_is_a_nan_not_a_null(tmp_path: Path) -> None:
    table = pq.read_table(store(tmp_path, [SampleOutcome(sample_id="a", rows=(rows("a"),))]))
    assert table.column("logprob").null_count == 0


def test_a_shard_of_failures_alone_has_no_row(tmp_path: Path) -> None:
    found, _ = read_shard(store(tmp_path, [SampleOutcome(sample_id="a", failure="no")]))
    assert [(outcome.sample_id, outcome.rows) for outcome in found] == [("a", ())]


def test_every_flipped_bit_and_every_truncation_is_found(tmp_path: Path) -> None:
    path = store(tmp_path, [SampleOutcome(sample_id="a", rows=(rows("a"),))])
    content = path.read_bytes()
    for index in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[index] ^= 0x10
        path.write_bytes(bytes(damaged))
        with pytest.raises(RunError, match=rf"{path.name}: damaged"):
            read_shard(path)
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(RunError, match=rf"{path.name}: damaged"):
            read_shard(path)


def test_page_checksums_find_a_flipped_bit_without_our_digest(tmp_path: Path) -> None:
    """Other readers of the file are protected too, if they ask for the check."""
    path = store(tmp_path, [SampleOutcome(sample_id="a", rows=(rows("a"),))])
    column = pq.read_metadata(path).row_group(0).column(4)
    assert column.path_in_schema == "logprob"
    assert "BYTE_STREAM_SPLIT" in column.encodings
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(pa.BufferReader(bytes(damaged)), page_checksum_verification=True).read()


def test_a_parquet_file_that_is_no_shard_is_refused(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    content = sink.getvalue().to_pybytes()
    path = tmp_path / shard_name(0, content)
    path.write_bytes(content)
    with pytest.raises(RunError, match="is not a shard of a run"):
        read_shard(path)


def test_the_digest_of_rows_sees_one_bit_of_any_column() -> None:
    base = rows("a", num_top=1)
    digests = {base.digest}
    for name in ("token_id", "rank", "window_id", "top_ids"):
        changed = rows("a", num_top=1)
        getattr(changed, name).reshape(-1)[4] += 1
        digests.add(changed.digest)
    for name in ("logprob", "top_logprobs"):
        changed = rows("a", num_top=1)
        bits = getattr(changed, name).copy().view(np.uint32)
        bits.reshape(-1)[4] ^= 1
        digests.add(SampleRows(**{**changed.__dict__, name: bits.view(np.float32)}).digest)
    changed = rows("a", num_top=1)
    changed.valid[4] = False
    digests.add(changed.digest)
    assert len(digests) == 8
