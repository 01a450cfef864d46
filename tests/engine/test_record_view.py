"""Layers that read packed records through block tables: the bytes of layers that read decoded rows.

The ops of the CPU set answer by decoding (``kernels/record_chains``), so what is compared are the places:
tables, windows, entries, in steps of every kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from trace_play import Trace, check, core_of, packed, play, random_trace, shortened

from deepinfer.engine import batch, op_replay, step_padding, step_records
from deepinfer.engine.api import (
    EngineConfig,
    GenerateRequest,
    PrefillMode,
    SamplingParams,
    ScoreRequest,
    ScoreResult,
)
from deepinfer.engine.cache.record_view import RecordView
from deepinfer.engine.llm import LLM
from deepinfer.engine.op_replay import OpCall, capture
from deepinfer.engine.step_graphs import StepGraphs
from deepinfer.kernels import chains
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import PagedRecords


class ReadingOps:
    """A kernel set whose engine hands records over; counts how often it did."""

    reads_records = True
    attention = chains.attention

    def __init__(self, ops: Ops) -> None:
        self._ops, self.num_reads = ops, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("select_records", "select_records_within", "attend_records"):
            self.num_reads += 1
        return getattr(self._ops, name)


def reading(llm: LLM) -> tuple[LLM, ReadingOps]:
    ops = ReadingOps(llm._model.ops)
    return llm.with_model(lambda model: model.bound_to(cast(Ops, ops))), ops


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


def traced_core(llm: LLM, trace: Trace) -> tuple[Any, ReadingOps]:
    other, ops = reading(llm)
    return core_of(llm, trace, other._model), ops


@pytest.mark.parametrize("graphs", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("seed", [6, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3, 4, 5, 7))])
def test_random_traffic_on_records_moves_no_bit(llm: LLM, seed: int, graphs: bool) -> None:
    """Chunks, prefix hits, preemption, drafts, truncated prompts; recorded steps and turns, or neither."""
    trace = shortened(random_trace(seed)) if seed == 6 else random_trace(seed)
    core, ops = traced_core(llm, replace(trace, core=replace(trace.core, graphs=graphs)))
    assert check(llm, trace, core) > 0
    assert ops.num_reads > 100
    assert not graphs or core.launcher.turns.recordings.shapes, "turns read rings in place"


@pytest.mark.parametrize("mode", list(PrefillMode))
def test_scores_from_records_are_those_from_decoded_rows(llm: LLM, mode: PrefillMode) -> None:
    """In one step, in chunks, and in recorded waves."""
    ids = [range(4, 290), range(30, 171), range(7, 12)]
    asked = [ScoreRequest(request_id=f"s{i}", token_ids=one) for i, one in enumerate(ids)]
    base = llm.with_config(replace(llm.config, prefill=mode))
    wanted = [bytes_of(one) for one in base.score(asked)]
    for settings in ({}, {"max_chunk_tokens": 37}, {"recorded_steps": True}):
        other, ops = reading(base.with_config(replace(base.config, **settings)))
        assert [bytes_of(one) for one in other.score(asked)] == wanted
        assert ops.num_reads > 10


def bytes_of(result: Any) -> bytes:
    assert isinstance(result, ScoreResult)
    return bytes(result.logprobs.tobytes())


def replayed(llm: LLM) -> dict[str, list[bool]]:
    """Ops on records as they were called, run again on one row each after everything is over."""
    calls: dict[tuple[Any, ...], OpCall] = {}
    other, ops = reading(llm)
    other = other.with_model(capture(calls))
    params = SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
    prompts = [range(4, 170 + 9 * i) for i in range(3)]
    asked = [
        GenerateRequest(request_id=f"{i}", token_ids=ids, params=params) for i, ids in enumerate(prompts)
    ]
    other.generate(asked)
    other.generate(asked)
    found: dict[str, list[bool]] = {}
    for call in calls.values():
        for row in (0, call.num_rows // 2, call.num_rows - 1):
            again = call.on_rows(cast(Ops, ops), row, row + 1)
            same = [torch.equal(a, b[row : row + 1]) for a, b in zip(again, call.result, strict=True)]
            found.setdefault(call.name, []).append(all(same))
    return {name: same for name, same in found.items() if "records" in name}


def test_ops_on_records_are_replayed_on_the_records_of_their_time(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = llm.with_config(replace(llm.config, prefix_caching=False, num_cache_blocks=8))
    sound = replayed(base)
    assert len(sound) == 3
    assert all(all(same) for same in sound.values())
    monkeypatch.setattr(op_replay, "deepcopy", lambda records: records)
    late = replayed(base)
    assert not all(all(same) for same in late.values()), "records that were written over would not be seen"


Break = Callable[[pytest.MonkeyPatch], None]


def blocks_of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    """Every sequence reads the block before its own."""
    sound = step_records.block_tables
    patch.setattr(batch, "block_tables", lambda chunks: np.maximum(sound(chunks) - 1, 0))


def blocks_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """The first two blocks of every sequence are exchanged."""
    sound = RecordView.keys

    def faulty(self: RecordView, *given: Any) -> PagedRecords:
        pages = sound(self, *given)
        table = pages.table.clone()
        table[:, :2] = table[:, :2].flip(1)
        return replace(pages, table=table)

    patch.setattr(RecordView, "keys", faulty)


def windows_of_the_row_before(patch: pytest.MonkeyPatch) -> None:
    """A row sees one latent too few at its end."""
    sound = RecordView.slots

    def faulty(self: RecordView, *given: Any) -> torch.Tensor:
        slots = sound(self, *given).clone()
        slots[:, -1] = -1
        return slots

    patch.setattr(RecordView, "slots", faulty)


def rings_that_are_overwritten(patch: pytest.MonkeyPatch) -> None:
    """Chunks of prompts read their windows from the rings, as turns do."""
    sound = RecordView.__init__

    def faulty(self: RecordView, caches: Any, step: Any, ops: Any) -> None:
        sound(self, caches, replace(step, keeps_windows=True), ops)

    patch.setattr(RecordView, "__init__", faulty)


def narrow_tables(patch: pytest.MonkeyPatch) -> None:
    """Recorded steps that keep the first block of every sequence."""
    sound = step_padding._tables_of

    def faulty(*given: Any) -> torch.Tensor:
        tables = sound(*given).clone()
        tables[:, 1:] = 0
        return tables

    patch.setattr(step_padding, "_tables_of", faulty)


def recorded_core(llm: LLM, trace: Trace) -> Any:
    core, _ = traced_core(llm, trace)
    core.launcher.graphs = StepGraphs(core.model, core.caches, core.max_length + 8, capture=lambda work: work)
    return core


TRACE = shortened(random_trace(4))


def answers(core: Any, trace: Trace) -> list[bytes]:
    return [packed(record) for records in play(core, trace).values() for record in records]


@pytest.fixture(scope="module")
def sound(llm: LLM) -> list[bytes]:
    return answers(core_of(llm, TRACE), TRACE)


@pytest.mark.parametrize(
    "fault",
    [
        None,
        blocks_of_the_neighbour,
        blocks_in_another_order,
        windows_of_the_row_before,
        rings_that_are_overwritten,
        narrow_tables,
    ],
    ids=lambda fault: getattr(fault, "__name__", "sound"),
)
def test_a_wrong_place_is_seen(
    llm: LLM, sound: list[bytes], fault: Break | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault is not None:
        fault(monkeypatch)
    assert (answers(recorded_core(llm, TRACE), TRACE) == sound) == (fault is None)
