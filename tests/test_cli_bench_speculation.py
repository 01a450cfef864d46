"""``bench --speculation`` on a few tokens: the JSON keys, the table, and that other bytes would be said."""

from __future__ import annotations

import json

import pytest

from deepinfer.commands.bench_speculation import render, to_document
from deepinfer.engine.api import EngineConfig
from deepinfer.eval.bench_speculation import SpeculationBench, SpeculationResult, run_speculation_bench


@pytest.fixture(scope="module")
def result() -> SpeculationResult:
    bench = SpeculationBench(
        workloads=("code",), new_tokens=12, prompt_tokens=32, policies=("fixed", "confidence"), rounds=1
    )
    return run_speculation_bench(None, EngineConfig(num_threads=2), bench, lambda what, done, total: None)


def test_json_keys(result: SpeculationResult) -> None:
    found = json.loads(json.dumps(to_document(result)))["speculation"]
    assert found["same_bytes"] is True
    assert found["speedup_batch_1"] > 0
    assert found["known_speedup_batch_1"] > 0
    assert 1 <= found["accepted_length"] <= 6
    assert len(found["acceptance"]) == 5
    assert 0 <= found["calibration_error"] <= 1
    assert sum(part["count"] for part in found["reliability"]) > 0
    assert found["rows_wasted"] <= found["rows_verified"]
    assert set(found["batches"]["1"]["variants"]) == {"plain", "plain-async", "fixed", "confidence", "known"}
    assert found["workloads"]["code"]["accepted_length"] == found["accepted_length"]


def test_the_table_says_whether_bytes_are_the_same(result: SpeculationResult) -> None:
    assert "every variant gave the bytes of plain decoding" in render(result)
    result.batches[1].same_bytes = False
    try:
        assert "OTHER BYTES" in render(result)
    finally:
        result.batches[1].same_bytes = True
