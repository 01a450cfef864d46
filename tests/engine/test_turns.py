"""Turns, which plan and sample on the device: the bytes of steps that the host plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trace_play import Trace, check, core_of, random_trace

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.turns.recordings import Result, TurnRecordings, Work


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    """Window 16, blocks of 128 tokens, drafts of 5."""
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


class Recorder:
    """Stands for CUDA: what is captured runs anew at each play, and its results lie where they first lay."""

    def __init__(self) -> None:
        self.num_plays = 0

    def __call__(self, work: Work) -> Work:
        places: list[Result] = []

        def again() -> Result:
            self.num_plays += 1
            result = work()
            if not places:
                places.append(result)
            for place, part in zip(places[0], result, strict=True):
                place.copy_(part)
            return places[0]

        return again


def recorded_core(llm: LLM, trace: Trace) -> tuple[EngineCore, Recorder]:
    core, recorder = core_of(llm, replace(trace, core=replace(trace.core, graphs=True))), Recorder()
    turns = core.launcher.turns
    assert turns is not None
    core.launcher.turns = replace(turns, recordings=TurnRecordings(turns.turn, recorder))
    return core, recorder


@pytest.mark.parametrize(
    "seed", [4, 5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30))]
)
def test_random_traffic_in_turns_moves_no_bit(llm: LLM, seed: int) -> None:
    trace = random_trace(seed)
    core, recorder = recorded_core(llm, trace)
    assert check(llm, trace, core) > 0
    assert recorder.num_plays > 0
    assert torch.get_num_threads() > 0
