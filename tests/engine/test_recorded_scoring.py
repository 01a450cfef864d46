"""Waves of scoring in padded, recorded steps on shared caches: the bytes of waves that are planned anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.engine import step_graphs, step_padding
from deepinfer.engine.api import EngineConfig, RequestFailure, ScoreRequest
from deepinfer.engine.batch import Groups, Rows
from deepinfer.engine.llm import LLM
from deepinfer.engine.step_graphs import StepGraphs

ROWS = 320
CONFIG = EngineConfig(num_threads=2, max_batch_tokens=ROWS, recorded_steps=True)
"""Recorded, and so small that requests make many waves of few shapes."""


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", CONFIG)


def requests(lengths: Sequence[int]) -> list[ScoreRequest]:
    rng = np.random.default_rng(5)
    return [
        ScoreRequest(
            request_id=f"{i}",
            token_ids=rng.integers(4, 200, length).tolist(),
            num_top=2 * (i % 2),
            score_start=1 + length // 2 * (i % 3 == 2),
        )
        for i, length in enumerate(lengths)
    ]


LENGTHS = (150, 141, 9, 1, 300, 159, 151, 290, 64, 63, 2, 128, 129, 30, 40, 305, 7, 301)
"""Waves of 301 to 320 rows, one to six sequences each."""


def answers(llm: LLM, asked: Sequence[ScoreRequest]) -> list[bytes]:
    said = []
    for result in llm.score(asked):
        assert not isinstance(result, RequestFailure)
        top = b"" if result.top_logprobs is None else result.top_logprobs.tobytes()
        said.append(result.logprobs.tobytes() + result.ranks.tobytes() + result.valid.tobytes() + top)
    return said


def graphs_of(llm: LLM) -> StepGraphs:
    home = llm._scorer._home
    assert home is not None
    return home.graphs


def plain(llm: LLM, asked: Sequence[ScoreRequest], **changes: object) -> list[bytes]:
    return answers(llm.with_config(replace(CONFIG, recorded_steps=False, **changes)), asked)  # type: ignore[arg-type]


def test_recorded_waves_have_the_bytes_of_plain_ones(llm: LLM) -> None:
    asked = requests(LENGTHS)
    wanted = plain(llm, asked)
    assert answers(llm, asked) == wanted
    assert graphs_of(llm).num_recorded > 0
    assert answers(llm, asked) == wanted


def test_waves_cut_into_chunks_too(llm: LLM) -> None:
    """Histories out of the rings, halves that wait for their partners, entries of earlier steps."""
    asked = requests(LENGTHS)
    cut = llm.with_config(replace(CONFIG, max_chunk_tokens=77))
    assert answers(cut, asked) == plain(llm, asked)
    assert graphs_of(cut).num_recorded > 1
    assert answers(cut, asked) == plain(llm, asked)


def test_a_wave_that_finds_no_room_runs_without_a_recording(llm: LLM) -> None:
    fresh = llm.with_config(CONFIG)
    asked = requests((ROWS + 1, 1, 1, 1))
    many = [replace(one, request_id=f"m{i}") for i, one in enumerate(requests((3,) * 70))]
    assert answers(fresh, asked + many) == plain(llm, asked + many)


def stale_buffers(patch: pytest.MonkeyPatch) -> None:
    """A buffer that keeps the first step it was given."""
    patch.setattr(step_graphs, "_load", lambda recording, tensors: None)


def padding_that_writes(patch: pytest.MonkeyPatch) -> None:
    """Padding rows that store their entries in the record of somebody else."""
    sound = step_padding._groups_of

    def faulty(groups: Groups, *rest: object) -> Groups:
        found = sound(groups, *rest)  # type: ignore[arg-type]
        return replace(found, writes=torch.where(found.writes < 0, found.records[0], found.writes))

    patch.setattr(step_padding, "_groups_of", faulty)


def pairs_that_do_not_shift(patch: pytest.MonkeyPatch) -> None:
    """Halves and histories looked for where they lie without padding."""
    patch.setattr(step_padding, "_shifted", lambda places, size, room: places)


def padding_in_the_rings(patch: pytest.MonkeyPatch) -> None:
    """Padding rows that overwrite a latent of slot 0."""
    sound = step_padding._rows_of

    def faulty(rows: Rows, *rest: object) -> Rows:
        found = sound(rows, *rest)  # type: ignore[arg-type]
        return replace(found, ring_records=torch.where(found.ring_records < 0, 3, found.ring_records))

    patch.setattr(step_padding, "_rows_of", faulty)


@pytest.fixture(scope="module")
def few(llm: LLM) -> tuple[list[ScoreRequest], list[bytes]]:
    asked = requests(LENGTHS[:8])
    return asked, plain(llm, asked)


@pytest.mark.parametrize(
    "fault",
    [
        stale_buffers,
        padding_that_writes,
        *(pytest.param(f, marks=pytest.mark.slow) for f in (pairs_that_do_not_shift, padding_in_the_rings)),
    ],
)
def test_a_fault_in_recording_is_seen(
    llm: LLM,
    few: tuple[list[ScoreRequest], list[bytes]],
    fault: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, wanted = few
    fault(monkeypatch)
    cut = llm.with_config(replace(CONFIG, max_chunk_tokens=77))
    assert answers(cut, asked) != wanted
