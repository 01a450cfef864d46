"""Negative controls of speculation and asynchrony: each seeded fault gives other bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from speculation_play import FIXED, LIMITS, finished, requests, stopping, trace
from trace_play import HalfKnown, Trace, alone, core_of, packed, play, watched

from deepinfer.engine import batch, drawn_rows, step_run
from deepinfer.engine import core as core_module
from deepinfer.engine.api import EngineConfig
from deepinfer.engine.cache.caches import default_ring
from deepinfer.engine.core import CoreConfig
from deepinfer.engine.emission import Ending
from deepinfer.engine.llm import LLM
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.prefixes import Prefixes
from deepinfer.engine.speculation import acceptance
from deepinfer.engine.step_plan import StepPlan
from deepinfer.engine.step_records import GroupPlan


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    """Window 16, blocks of 128 tokens, drafts of 5."""
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


Break = Callable[[pytest.MonkeyPatch], None]


def small_ring(patch: pytest.MonkeyPatch) -> None:
    """Rings without room for rejected rows: they overwrite what is still visible."""

    def short(config: ModelConfig) -> int:
        return default_ring(config) - config.dspark_block_size - 1

    patch.setattr(core_module, "default_ring", short)


def one_half(patch: pytest.MonkeyPatch) -> None:
    """A compressor that keeps the half of the last row only, accepted or not."""
    sound = batch.plan_groups

    def last_only(plan: StepPlan, ratio: int, max_drafts: int) -> GroupPlan:
        found, rows = sound(plan, ratio, max_drafts), plan.encoder
        kept = rows.positions[found.halves] == rows.last[found.halves]
        return replace(found, halves=found.halves[kept], waiting=found.waiting[kept])

    patch.setattr(batch, "plan_groups", last_only)


def remembered(patch: pytest.MonkeyPatch) -> None:
    """A block that only rejected rows completed becomes findable."""
    sound = Prefixes.remember

    def careless(self: Prefixes, boundaries: tuple[step_run.Boundary, ...], computed: dict[int, int]) -> None:
        sound(self, boundaries, dict.fromkeys(computed, 10**6))

    patch.setattr(Prefixes, "remember", careless)


def accepted_anyway(patch: pytest.MonkeyPatch) -> None:
    """A wrong draft counts as accepted."""
    sound = acceptance.num_accepted
    patch.setattr(
        acceptance, "num_accepted", lambda sampled, drafts: min(sound(sampled, drafts) + 1, len(drafts))
    )


def keyed_by_row(patch: pytest.MonkeyPatch) -> None:
    """Every row of a step draws for the same position."""
    sound = drawn_rows.draw_rows

    def faulty(
        ops: object, logits: object, params: object, seeds: object, positions: list[int], samples: object
    ) -> object:
        return sound(ops, logits, params, seeds, [positions[0]] * len(positions), samples)  # type: ignore[arg-type]

    patch.setattr(drawn_rows, "draw_rows", faulty)


def emitted_late(patch: pytest.MonkeyPatch) -> None:
    """Tokens behind a stop are given out."""
    sound = core_module.ending

    def deaf(answer: step_run.Answer, eos: int, longest: int) -> Ending:
        end = sound(answer, eos, longest)
        more = len(answer.token_ids) - end.num_tokens
        return end._replace(num_tokens=end.num_tokens + more, num_computed=end.num_computed + more)

    patch.setattr(core_module, "ending", deaf)


def freed_at_once(patch: pytest.MonkeyPatch) -> None:
    """What an ended sequence held goes to others while a step still writes to it."""
    sound = core_module.Scheduler.release

    def hasty(self: core_module.Scheduler, sequence: core_module.Sequence) -> None:
        sequence.num_in_flight = 0
        sound(self, sequence)

    patch.setattr(core_module.Scheduler, "release", hasty)


def is_different(llm: LLM, played: Trace, broken: Break) -> bool:
    """Whether the trace, played with the fault, gives other bytes than its requests alone, or is refused."""
    wanted = {request.request_id: alone(llm, played.mode, request, 0) for request in played.requests}
    with pytest.MonkeyPatch.context() as patch:
        broken(patch)
        core = core_of(llm, played)
        assert core.speculation is not None
        assert isinstance(core.speculation.drafter, HalfKnown)
        core.speculation.drafter.truth = {
            (name, 0): [r.token_id for r in records if r.token_id is not None]
            for name, (records, _) in wanted.items()
        }
        rows = watched(core)
        try:
            seen = play(core, played)
        except (AssertionError, ValueError, IndexError):
            return True
    for request in played.requests:
        records, single = wanted[request.request_id]
        got = [record for record in seen[request.request_id, 0] if record.token_id is not None]
        if request.request_id not in played.aborts.values() and len(got) != len(records):
            return True
        for mine, theirs in zip(got, records, strict=False):
            key = request.params.seed or 0, 0, mine.position
            if packed(mine) != packed(theirs) or rows.get(key) != single[key]:
                return True
    return False


@pytest.mark.parametrize(
    "broken", [small_ring, one_half, accepted_anyway, keyed_by_row], ids=lambda broken: broken.__name__
)
def test_a_fault_of_verification_is_found(llm: LLM, broken: Break) -> None:
    played = trace(prefix_caching=False)
    assert is_different(llm, played, broken)
    assert not is_different(llm, played, lambda patch: None)


def test_a_rejected_block_in_the_tree_is_found(llm: LLM) -> None:
    given = requests(3)
    config = CoreConfig(limits=LIMITS, num_blocks=24)
    with pytest.MonkeyPatch.context() as patch:
        remembered(patch)
        with pytest.raises(ValueError, match="num_tokens"):  # no token is known for what the rows computed
            finished(llm, replace(config, speculation=FIXED), given)


def test_tokens_behind_a_stop_are_found(llm: LLM) -> None:
    request, token = stopping(llm, 3)
    stopped = replace(request, should_stop=lambda ids: token in ids)
    played = replace(trace(), requests=(stopped,), arrivals=(0,))
    assert is_different(llm, played, emitted_late)
    assert not is_different(llm, played, lambda patch: None)


def test_memory_freed_too_early_is_found(llm: LLM) -> None:
    """Who takes the place of an aborted request is written over by the step in flight."""
    given = tuple(replace(r, token_ids=r.token_ids[: 60 + i]) for i, r in enumerate(requests(3)))
    limits = replace(LIMITS, max_sequences=1)
    base = trace(limits=limits, num_blocks=1, asynchronous=True, prefix_caching=False)
    found = []
    for step in (3, 5):
        played = replace(base, requests=given, arrivals=(0, 0, 0), aborts={step: "r0"})
        found.append(is_different(llm, played, freed_at_once))
    assert any(found)
