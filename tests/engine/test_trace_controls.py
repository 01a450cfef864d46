"""Negative controls of the random traces: a fault on each axis, in the crowd only, is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trace_play import Trace, alone, check, core_of, packed, play, random_trace, watched

from deepinfer.engine import batch, drawn_rows
from deepinfer.engine.api import EngineConfig, GenerateRequest, PrefillMode, SamplingParams
from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.cache.snapshots import Snapshot
from deepinfer.engine.core import CoreConfig
from deepinfer.engine.llm import LLM
from deepinfer.engine.scheduler import Limits, Scheduler
from deepinfer.engine.sequence import Sequence as Sample
from deepinfer.engine.step_plan import PlannedRows
from deepinfer.engine.step_records import RowRecords
from deepinfer.kernels.cpu import chains
from deepinfer.kernels.cpu.linear import Float32
from deepinfer.kernels.interface import Ops


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


def break_batch(patch: pytest.MonkeyPatch) -> None:
    """A product that rounds otherwise when it has company."""
    sound = chains.linear_kernel

    def faulty(
        x: Float32, place: object, out: Float32, outputs: int, bf16: bool, low: int, high: int
    ) -> None:
        sound(x, place, out, outputs, bf16, low, high)
        if high - low > 1:
            out[low] = np.nextafter(out[low], np.float32(np.inf))

    patch.setattr(chains, "linear_kernel", faulty)


def break_chunks(patch: pytest.MonkeyPatch) -> None:
    """Histories that begin one position late."""

    sound = batch.plan_records

    def shifted(rows: PlannedRows, *rest: Any) -> RowRecords:
        return sound(replace(rows, history_position=rows.history_position + 1), *rest)

    patch.setattr(batch, "plan_records", shifted)


def break_prefix(patch: pytest.MonkeyPatch) -> None:
    """A hit that leaves the rings as they were."""
    patch.setattr(Snapshot, "restore", lambda self, caches, slot, boundary: None)


def break_eviction(patch: pytest.MonkeyPatch) -> None:
    """A pool that gives a block of a live sequence away when it is short."""
    sound = BlockPool.allocate

    def faulty(self: BlockPool, count: int) -> list[int] | None:
        blocks = sound(self, count)
        return blocks if blocks is None or count < 2 else [blocks[0]] * count

    patch.setattr(BlockPool, "allocate", faulty)
    patch.setattr(BlockPool, "release", lambda self, block: None)


def break_preemption(patch: pytest.MonkeyPatch) -> None:
    """A generator that starts anew when its sample does."""
    sound = Scheduler._preempt

    def faulty(self: Scheduler, sequence: Sample) -> None:
        sound(self, sequence)
        sequence.seed ^= 1

    patch.setattr(Scheduler, "_preempt", faulty)


def break_aborts(patch: pytest.MonkeyPatch) -> None:
    """The slot of an aborted sample is given away twice."""
    sound = Scheduler.release

    def faulty(self: Scheduler, sequence: Sample) -> None:
        if sequence.finish_reason == "abort" and sequence.slot >= 0:
            self.free_slots.append(sequence.slot)
        sound(self, sequence)

    patch.setattr(Scheduler, "release", faulty)


def break_seeds(patch: pytest.MonkeyPatch) -> None:
    """Draws keyed by the row."""
    sound = drawn_rows.draw_rows

    def faulty(
        ops: Ops,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        positions: Sequence[int],
        samples: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return sound(ops, logits, params, [s ^ row for row, s in enumerate(seeds)], positions, samples)

    patch.setattr(drawn_rows, "draw_rows", faulty)


def control_trace(axis: str) -> Trace:
    """A small trace that meets the axis: four prompts with one prefix, an engine short of room."""
    # two samples that cross into a third block soon, where there are five
    shared, max_tokens = (list(range(4, 246)), 20) if axis == "preemption" else (list(range(4, 140)), 10)
    params = SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
    requests = tuple(
        GenerateRequest(
            request_id=f"r{i}",
            token_ids=[*shared, 200 + i, *range(300, 310 + i)],
            params=replace(params, seed=5 + i),
        )
        for i in range(4)
    )
    core = CoreConfig(
        limits=Limits(max_rows=64, max_chunk=37, max_sequences=2),
        num_blocks=5 if axis == "preemption" else 8,
        prefix_caching=axis in ("prefix", "aborts"),
    )
    return Trace(PrefillMode.OFF, core, requests, (0, 0, 3, 3), {6: "r0"} if axis == "aborts" else {})


CONTROLS = {
    "batch": break_batch,
    "chunks": break_chunks,
    "prefix": break_prefix,
    "eviction": break_eviction,
    "preemption": break_preemption,
    "aborts": break_aborts,
    "seeds": break_seeds,
}


@pytest.mark.parametrize("axis", CONTROLS)
def test_a_fault_on_each_axis_is_found(axis: str, llm: LLM) -> None:
    """Negative controls: the same trace is clean without the fault; only the crowd runs with it."""
    trace = control_trace(axis)
    core = core_of(llm, trace)
    assert check(llm, trace, core) > 0
    if axis == "preemption":
        assert core.scheduler.stats.num_preemptions > 0
    broken = core_of(llm, trace)
    with pytest.MonkeyPatch.context() as patch:
        CONTROLS[axis](patch)
        try:
            crowd = watched(broken)
            seen = play(broken, trace)
        except (AssertionError, ValueError, IndexError):
            return  # the engine itself refused
    different = False
    for request in trace.requests:
        want, single = alone(llm, trace.mode, request, 0)
        for mine, theirs in zip(seen[request.request_id, 0], want, strict=False):
            if mine.token_id is not None:
                key = request.params.seed or 0, 0, mine.position
                different |= packed(mine) != packed(theirs) or crowd.get(key) != single[key]
    assert different


def test_one_changed_logit_is_found(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the last bit of one logit, too small to change any token."""
    trace = random_trace(1)
    model = llm._model.bound_to(llm._model.ops)
    sound = model.logits

    def nudged(normed: torch.Tensor) -> torch.Tensor:
        logits = sound(normed)
        logits.view(torch.int32)[-1, 7] ^= 1
        return logits

    monkeypatch.setattr(model, "logits", nudged)
    with pytest.raises(AssertionError, match="logits rows differ"):
        check(llm, trace, core_of(llm, trace, model))
