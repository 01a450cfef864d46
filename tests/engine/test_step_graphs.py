"""Padded steps run again and again on the same buffers, as CUDA graphs are: the bytes of plain steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trace_play import Trace, check, core_of, packed, play, random_trace

from deepinfer.engine import step_graphs, step_padding
from deepinfer.engine.api import EngineConfig
from deepinfer.engine.batch import Groups, Rows
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.transformer import Hidden
from deepinfer.engine.step_graphs import StepGraphs, Work


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


class Recorder:
    """Stands for CUDA: what is captured runs anew at each play, and its result lies where it first lay."""

    def __init__(self) -> None:
        self.num_plays = 0

    def __call__(self, work: Work) -> Work:
        place: list[torch.Tensor] = []

        def again() -> Hidden:
            self.num_plays += 1
            hidden = work()
            if not place:
                place.append(hidden.normed)
            return replace(hidden, normed=place[0].copy_(hidden.normed))

        return again


def recorded_core(llm: LLM, trace: Trace) -> tuple[EngineCore, Recorder]:
    core, recorder = core_of(llm, trace), Recorder()
    core.launcher.graphs = StepGraphs(core.model, core.caches, core.max_length + 8, capture=recorder)
    return core, recorder


@pytest.mark.parametrize(
    "seed", [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 6, 7))]
)
def test_random_traffic_on_recorded_steps_moves_no_bit(llm: LLM, seed: int) -> None:
    trace = random_trace(seed)
    core, recorder = recorded_core(llm, trace)
    assert check(llm, trace, core) > 0
    assert recorder.num_plays > 10
    assert core.launcher.graphs is not None
    assert 0 < core.launcher.graphs.num_recorded < recorder.num_plays


def answers(core: EngineCore, trace: Trace) -> list[bytes]:
    return [packed(record) for records in play(core, trace).values() for record in records]


@pytest.fixture(scope="module")
def sound(llm: LLM) -> list[bytes]:
    return answers(core_of(llm, random_trace(4)), random_trace(4))


def shift_windows(patch: pytest.MonkeyPatch) -> None:
    """Windows that do not know that the history has grown."""
    patch.setattr(step_padding, "_shifted", lambda places, size, room: places)


def padding_that_writes(patch: pytest.MonkeyPatch) -> None:
    """Padding rows that store their entries in the record of somebody else."""
    sound = step_padding._groups_of

    def faulty(groups: Groups, *rest: object) -> Groups:
        found = sound(groups, *rest)  # type: ignore[arg-type]
        return replace(found, writes=torch.where(found.writes < 0, found.records[0], found.writes))

    patch.setattr(step_padding, "_groups_of", faulty)


def padding_in_the_rings(patch: pytest.MonkeyPatch) -> None:
    """Padding rows that overwrite the latent before the first row's, which no row of the step writes."""
    sound = step_padding._rows_of

    def faulty(rows: Rows, *rest: object) -> Rows:
        found = sound(rows, *rest)  # type: ignore[arg-type]
        before = found.ring_records[0] - 1
        return replace(found, ring_records=torch.where(found.ring_records < 0, before, found.ring_records))

    patch.setattr(step_padding, "_rows_of", faulty)


def stale_buffers(patch: pytest.MonkeyPatch) -> None:
    """A buffer that keeps the first step it was given."""
    patch.setattr(step_graphs, "_load", lambda recording, tensors: None)


@pytest.mark.parametrize("fault", [shift_windows, padding_that_writes, padding_in_the_rings, stale_buffers])
def test_a_fault_in_recording_is_seen(
    llm: LLM,
    sound: list[bytes],
    fault: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    trace = random_trace(4)
    assert answers(recorded_core(llm, trace)[0], trace) != sound
