"""Drafts on their way: the host goes on until it needs their ids; when they are made changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from speculation_play import FIXED, LIMITS, requests, trace
from trace_play import Trace, check

from deepinfer.engine import batch
from deepinfer.engine.api import EngineConfig, GenerateRequest, SamplingParams
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.core import EngineCore
from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.llm import LLM
from deepinfer.engine.scheduler import Scheduler
from deepinfer.engine.speculation.drafter import DraftPoint, ModelDrafter
from deepinfer.engine.speculation.drafts import Drafts


class Kept(ModelDrafter):
    """Keeps everything that it drafted."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm._draft, llm.rule)
        self.made: list[Drafts] = []

    def propose(self, points: Items[DraftPoint], caches: Caches, num_drafts: int) -> list[Drafts]:
        found = super().propose(points, caches, num_drafts)
        self.made += found
        return found


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


def drafted(llm: LLM, played: Trace) -> list[bytes | None]:
    """All drafts of a trace in their order, None for those that nobody asked for; the bytes are checked."""
    drafter = Kept(llm)
    core = EngineCore(llm._model, llm.rule, played.core, drafter)
    check(llm, played, core)
    is_asked = [drafts._found is not None for drafts in drafter.made]
    return [d.tokens.tobytes() if asked else None for d, asked in zip(drafter.made, is_asked, strict=True)]


def postponed(llm: LLM, patch: pytest.MonkeyPatch) -> None:
    """Let a pass run when somebody waits for it, not before."""
    sound = llm._draft.propose

    def later(*given: Any, **named: Any) -> Callable[[], Any]:
        return lambda: sound(*given, **named)()

    patch.setattr(llm._draft, "propose", later)


CROWD = replace(
    trace(num_blocks=4, prefix_caching=False),
    requests=tuple(replace(r, token_ids=r.token_ids[:100]) for r in requests(3, max_tokens=50)),
    arrivals=(0, 0, 0),
)
"""Three sequences of which one has to give way now and then."""


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("number", range(2))
def test_drafts_do_not_depend_on_when_they_are_made(
    llm: LLM, number: int, is_asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = [trace(), CROWD][number]
    played = replace(played, core=replace(played.core, asynchronous=is_asynchronous))
    early = drafted(llm, played)
    postponed(llm, monkeypatch)
    late = drafted(llm, played)
    assert len(early) == len(late) > 30
    assert all(mine == theirs for mine, theirs in zip(early, late, strict=True) if mine and theirs)
    assert sum(line is not None for line in late) > 30


def test_planning_goes_on_until_ids_are_needed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is planned with its drafts unknown: only then does it ask."""
    seen: list[str] = []
    sound = batch.plan_groups
    monkeypatch.setattr(batch, "plan_groups", lambda *given: (seen.append("planned"), sound(*given))[1])
    pass_of = llm._draft.propose

    def told(*given: Any, **named: Any) -> Callable[[], Any]:
        begun = pass_of(*given, **named)
        return lambda: (seen.append("asked"), begun())[1]

    monkeypatch.setattr(llm._draft, "propose", told)
    core = EngineCore(llm._model, llm.rule, trace(speculation=replace(FIXED, num_drafts=2)).core, Kept(llm))
    assert core.add(requests(1)[0]) is None
    while not core.step():  # the prompt takes two
        pass
    assert seen[-1] == "planned"
    seen.clear()
    core.step()
    assert "asked" in seen
    assert "planned" not in seen[seen.index("asked") :]


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_slot_is_given_away_when_its_contexts_are_read(
    llm: LLM, is_sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended or preempted, a sequence waits for the pass that reads its contexts; the control does not."""
    left: list[bool] = []
    sound = Scheduler._drop

    def looked(self: Scheduler, sequence: Any) -> None:
        drafts = sequence.drafts
        if not is_sound:
            sequence.drafts = Drafts(np.empty(0, np.int64), np.empty(0, np.float32))
        sound(self, sequence)
        if drafts.size:
            left.append(drafts._found is None)

    monkeypatch.setattr(Scheduler, "_drop", looked)
    played = replace(CROWD, aborts={12: "r0"})
    core = EngineCore(llm._model, llm.rule, played.core, Kept(llm))
    check(llm, played, core)
    assert left
    assert any(left) is not is_sound


def test_numbers_that_are_not_finite_end_a_run_with_drafts_too(llm: LLM) -> None:
    """Drafting begins before log-probabilities are looked at; it must not begin behind no token."""
    config = trace(speculation=FIXED, limits=LIMITS).core
    core = EngineCore(llm._model, llm.rule, config, Kept(llm))
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    assert core.add(GenerateRequest(request_id="a", token_ids=list(range(4, 40)), params=params)) is None
    sound = core.model.logits
    object.__setattr__(
        core.launcher.model, "logits", lambda normed: torch.full_like(sound(normed), float("nan"))
    )
    try:
        with pytest.raises(NonFiniteError, match="not finite"):
            core.step()
    finally:
        object.__delattr__(core.launcher.model, "logits")
