"""Turns, which plan and sample on the device: the bytes of steps that the host plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from speculation_play import finished, trace, tree_of
from trace_play import check, packed, random_trace
from turn_play import chained_core, plain, played, recorded_core, truth_of

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.batch import Rows
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.options import Speculation
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.turns import covering as covering_module
from deepinfer.engine.turns import rows as rows_module
from deepinfer.engine.turns.device_turn import DeviceTurn
from deepinfer.engine.turns.host_table import HostTable
from deepinfer.engine.turns.slips import Slip
from deepinfer.kernels.turn_chains import Turns
from deepinfer.kernels.turn_operands import TurnEnd, TurnForm, TurnPlan


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    """Window 16, blocks of 128 tokens, drafts of 5."""
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 30))])
def test_random_traffic_in_turns_moves_no_bit(llm: LLM, seed: int) -> None:
    trace = random_trace(seed)
    core, recorder = recorded_core(llm, trace)
    assert check(llm, trace, core) > 0
    assert recorder.num_plays > 0 or seed > 5, "these traces play recordings"


def rings_of(core: EngineCore) -> dict[tuple[bytes, ...], dict[int, bytes]]:
    """The prefix tree without the contexts of drafts."""
    return {
        path: {layer: ring for layer, ring in rings.items() if layer >= 0}
        for path, rings in tree_of(core).items()
    }


@pytest.mark.parametrize("policy", ["off", "fixed", "fixed:2", "confidence"])
def test_turns_that_follow_unseen_ones_move_no_bit(llm: LLM, policy: str) -> None:
    asked = plain(4, 24)
    records, truth = truth_of(llm, asked)
    core, recorder = chained_core(llm, truth, Speculation.from_text(policy), fewest_in_convoy=3)
    found = played(core, asked)
    for request, wanted in zip(asked, records, strict=True):
        assert found[request.request_id] == [packed(record) for record in wanted]
    assert recorder.num_plays > 0
    assert core.pool.num_used == 0
    assert not core._flights
    assert core.scheduler.stats.num_unseen > 3
    turns = core.launcher.turns
    assert turns is not None
    shared_out = [shape for shape in turns.recordings.shapes if shape.is_shared_out]
    assert bool(shared_out) == (policy == "confidence")
    eager = finished(llm, replace(trace().core, speculation=Speculation()), asked)
    assert rings_of(core) == rings_of(eager), "ends of blocks are kept as plain steps leave them"


@pytest.mark.parametrize("policy", [pytest.param("off", marks=pytest.mark.slow), "fixed:2"])
def test_a_batch_that_drains_is_played_in_what_is_recorded(
    llm: LLM, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six sequences end one by one: turns of five to one are those of six, filled up, with the same bytes."""
    asked = plain(6, 26)
    records, truth = truth_of(llm, asked)
    core, _ = chained_core(llm, truth, Speculation.from_text(policy))
    found = played(core, asked)
    for request, wanted in zip(asked, records, strict=True):
        assert found[request.request_id] == [packed(record) for record in wanted]
    few = core.launcher.num_recorded
    monkeypatch.setattr(covering_module, "covers", lambda *_: False)
    core, _ = chained_core(llm, truth, Speculation.from_text(policy))
    played(core, asked)
    assert few == 1 < core.launcher.num_recorded


Break = Callable[[pytest.MonkeyPatch], None]


def stale_ids(patch: pytest.MonkeyPatch) -> None:
    """The next turn is given the token before the one that was drawn."""
    sound = Turns.leave_turn

    def faulty(self: Any, plan: TurnPlan, end: TurnEnd, *rest: Any) -> torch.Tensor:
        known = plan.line[:, rest[-1].history - 1].contiguous()
        return sound(self, plan, replace(end, golden=known), *rest)

    patch.setattr(Turns, "leave_turn", faulty)


def stale_positions(patch: pytest.MonkeyPatch) -> None:
    """A turn leaves the position that plain decoding would have come to."""
    sound = Turns.leave_turn

    def faulty(self: Any, plan: TurnPlan, end: TurnEnd, *rest: Any) -> torch.Tensor:
        return sound(self, plan, replace(end, start=plan.start + 1), *rest)

    patch.setattr(Turns, "leave_turn", faulty)


def rules_of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    """Rows are drawn under the parameters of the next sequence."""
    draw, words = DeviceTurn._draw, DeviceTurn._words
    names = ("seeds", "samples", "top_k", "temperature", "top_p", "min_p")

    def shifted(plan: TurnPlan) -> TurnPlan:
        return replace(plan, **{name: getattr(plan, name).roll(1) for name in names})

    patch.setattr(DeviceTurn, "_draw", lambda self, plan, *given: draw(self, shifted(plan), *given))
    patch.setattr(DeviceTurn, "_words", lambda self, plan: words(self, shifted(plan)))


def rules_of_the_slot_before(patch: pytest.MonkeyPatch) -> None:
    """What the host keeps of a slot is never brought up to date."""
    sound = HostTable.refresh

    def faulty(self: HostTable, sequence: Any, vocab_size: int) -> None:
        if self._owners[sequence.slot] is not None:
            self._owners[sequence.slot] = sequence
        sound(self, sequence, vocab_size)

    patch.setattr(HostTable, "refresh", faulty)


def padding_that_writes(patch: pytest.MonkeyPatch) -> None:
    """Rows that fill a turn up overwrite the latest latent of slot 0."""
    sound = rows_module._rows

    def faulty(*given: Any) -> Rows:
        found = sound(*given)
        return replace(found, ring_records=torch.where(found.ring_records < 0, 3, found.ring_records))

    patch.setattr(rows_module, "_rows", faulty)


def table_of_the_first_turn(patch: pytest.MonkeyPatch) -> None:
    """A recording that is never given another table."""
    sound, seen = Slip.send, set()

    def faulty(self: Slip, table: Int64, place: torch.Tensor) -> None:
        if place.data_ptr() not in seen:
            sound(self, table, place)
        seen.add(place.data_ptr())

    patch.setattr(Slip, "send", faulty)


def outcome_of_a_turn_ahead(patch: pytest.MonkeyPatch) -> None:
    """A slip is used again before its outcome was read."""
    sound = Slip.fetch
    last: list[Slip] = []

    def faulty(self: Slip, packed: torch.Tensor) -> None:
        sound(self, packed)
        if last and last[0]._outcome is not None and last[0]._outcome.shape == packed.shape:
            last[0]._outcome.copy_(packed)
        last[:] = [self]

    patch.setattr(Slip, "fetch", faulty)


def one_draft_too_many(patch: pytest.MonkeyPatch) -> None:
    """The draft behind the last right one counts as accepted."""
    sound = Turns.end_turn

    def faulty(self: Any, table: torch.Tensor, plan: TurnPlan, ids: torch.Tensor, form: TurnForm) -> TurnEnd:
        end = sound(self, table, plan, ids, form)
        accepted = torch.minimum(end.accepted + 1, (plan.count - 1).clamp(min=0))
        start = plan.start + accepted + 1
        return replace(end, accepted=accepted, start=start, anchor=start * (plan.count > 0))

    patch.setattr(Turns, "end_turn", faulty)


FAULTS: list[tuple[str, Break]] = [
    ("off", stale_ids),
    ("off", rules_of_the_neighbour),
    ("off", table_of_the_first_turn),
    ("off", outcome_of_a_turn_ahead),
    ("off", padding_that_writes),
    ("off", rules_of_the_slot_before),
    ("fixed", stale_positions),
    ("fixed", one_draft_too_many),
]


@pytest.mark.parametrize(("policy", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_in_turns_is_seen(
    llm: LLM, policy: str, fault: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plain(3 if fault is padding_that_writes else 6, 26)
    records, truth = truth_of(llm, asked)
    fault(monkeypatch)
    core, _ = chained_core(llm, truth, Speculation.from_text(policy))
    try:
        found = played(core, asked)
    except (IndexError, RuntimeError, ValueError, AssertionError):
        return
    wanted = [[packed(record) for record in mine] for mine in records]
    assert [found[request.request_id] for request in asked] != wanted
