"""Sequences that are counted as columns: the records of every request alone, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from speculation_play import LIMITS
from trace_play import alone, packed
from turn_play import chained_core, plain, truth_of

from deepinfer.engine.api import EngineConfig, GenerateRequest, PrefillMode, SamplingParams, TokenRecord
from deepinfer.engine.convoy import Convoy
from deepinfer.engine.core import EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.options import Speculation
from deepinfer.engine.turns.drawn import Drawn, LateTokens

Traffic = tuple[LLM, tuple[GenerateRequest, ...], list[list[TokenRecord]], torch.Tensor]


@pytest.fixture(scope="module")
def traffic(golden_dir: Path) -> Traffic:
    """Five requests for four slots, over the end of a block: two stop by a token, one by its text."""
    llm = LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))
    asked = plain(5, 26)
    records, truth = truth_of(llm, asked)
    stops = [records[number][place].token_id for number, place in ((1, 7), (2, 11))]
    marks = tuple(record.token_id for record in records[3][4:6])

    def says(ids: Sequence[int]) -> bool:
        return any(tuple(ids[i : i + 2]) == marks for i in range(len(ids)))

    changed = (
        asked[0],
        replace(asked[1], params=replace(asked[1].params, stop_token_ids=(stops[0] or 0,))),
        replace(asked[2], params=replace(asked[2].params, stop_token_ids=(stops[1] or 0, 3))),
        replace(asked[3], should_stop=says),
        asked[4],
    )
    stopped = truth_of(llm, changed[1:4])[0]
    return llm, changed, [records[0], *stopped, records[4]], truth


Records = dict[str, list[TokenRecord]]


def run(core: EngineCore, asked: Sequence[GenerateRequest], abort: bool = False) -> Records:
    """All records; the first request may be aborted on the way, and asked again under another name."""
    found: Records = {request.request_id: [] for request in asked}
    for request in asked:
        assert core.add(request) is None
    for number in range(200):
        if abort and number == 9:
            found["r0"] += core.abort("r0")
            again = replace(asked[0], request_id="again")
            found["again"] = []
            assert core.add(again) is None
        for record in core.step() if core.has_unfinished else ():
            found[record.request_id].append(record)
    assert not core.has_unfinished, "the engine does not finish"
    assert (core.pool.num_used, len(core._flights)) == (0, 0)
    return found


def tight(traffic: Traffic, policy: str, **changed: object) -> EngineCore:
    core, _ = chained_core(
        traffic[0], traffic[3], Speculation.from_text(policy), fewest_in_convoy=2, **changed
    )
    return core


def said(records: Sequence[TokenRecord]) -> list[bytes]:
    return [packed(record) for record in records]


@pytest.mark.parametrize("policy", ["off", "fixed:2", "confidence"])
def test_a_convoy_gives_out_what_each_says_alone(
    traffic: Traffic, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asked, apart, _ = traffic
    steps, step = [], Convoy.step

    def counted(self: Convoy) -> Any:
        steps.append(step(self))
        return steps[-1]

    monkeypatch.setattr(Convoy, "step", counted)
    found = run(tight(traffic, policy), asked, abort=True)
    for request, wanted in zip(asked[1:], apart[1:], strict=True):
        assert said(found[request.request_id]) == said(wanted)
        assert found[request.request_id][-1].finish_reason == wanted[-1].finish_reason
    *given, last = found["r0"]
    assert said(given) == said(apart[0][: len(given)])
    assert (last.token_id, last.position) == (None, len(asked[0].token_ids) + len(given))
    assert [r.token_id for r in found["again"]] == [r.token_id for r in apart[0]]
    assert sum(taken is not None for taken in steps) > 5, "most turns are a convoy's"


def test_a_convoy_ends_where_memory_does(traffic: Traffic) -> None:
    """Two blocks for two sequences that want two each: somebody is preempted, and goes on as before."""
    _, asked, apart, _ = traffic
    long = (0, 4)  # those that nothing stops, and which want two blocks each
    core = tight(traffic, "off", num_blocks=2)
    asked, apart = tuple(asked[number] for number in long), [apart[number] for number in long]
    found = run(core, asked)
    assert core.scheduler.stats.num_preemptions > 0
    for request, wanted in zip(asked, apart, strict=True):
        assert said(found[request.request_id]) == said(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_random_traffic_in_convoys(traffic: Traffic, seed: int) -> None:
    """Requests that come, stop and are aborted at any time, under all policies, short of memory."""
    llm, draw = traffic[0], np.random.default_rng(seed)
    shared = draw.integers(4, 500, 140).tolist()
    asked = []
    for number in range(int(draw.integers(4, 9))):
        ids = (
            shared[: int(draw.choice([0, 0, 128, 131]))]
            + draw.integers(4, 500, int(draw.integers(1, 60))).tolist()
        )
        params = SamplingParams(
            temperature=float(draw.choice([0.0, 0.8])), seed=number, max_tokens=int(draw.integers(1, 40)),
            ignore_eos=bool(draw.integers(2)), n=int(draw.choice([1, 1, 2])),
            stop_token_ids=tuple(draw.integers(4, 500, int(draw.choice([0, 0, 90]))).tolist()),
        )  # fmt: skip
        mark = int(draw.integers(8, 60)) if draw.random() < 0.3 else 0
        stop = (lambda given, mark=mark: sum(given) % mark == 0) if mark else None
        asked.append(GenerateRequest(request_id=f"r{number}", token_ids=ids, params=params, should_stop=stop))
    core = tight(
        traffic, str(draw.choice(["off", "fixed", "fixed:2", "confidence"])),
        num_blocks=int(draw.integers(3, 12)), prefix_caching=bool(draw.integers(2)),
        limits=replace(LIMITS, max_sequences=int(draw.integers(2, 6))),
    )  # fmt: skip
    come = np.sort(draw.integers(0, 30, len(asked))).tolist()
    aborted = {int(draw.integers(5, 40)): f"r{int(draw.integers(len(asked)))}"} if draw.random() < 0.5 else {}
    found: dict[tuple[str, int], list[TokenRecord]] = {}
    for number in range(400):
        records: list[TokenRecord] = []
        for request in (r for r, at in zip(asked, come, strict=True) if at == number):
            assert core.add(request) is None
        if number in aborted:
            records += core.abort(aborted[number])
        for record in (*records, *(core.step() if core.has_unfinished else ())):
            found.setdefault((record.request_id, record.sample_index), []).append(record)
    assert not core.has_unfinished
    assert (core.pool.num_used, len(core._flights)) == (0, 0)
    for request in asked:
        for sample in range(request.params.n):
            given = found.get((request.request_id, sample), [])
            is_whole = bool(given) and given[-1].finish_reason != "abort"
            given = given if is_whole else given[:-1]
            wanted = alone(llm, PrefillMode.OFF, request, sample)[0]
            assert said(given) == said(wanted[: None if is_whole else len(given)])


def deaf_to_stops(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks for stop tokens."""
    sound = Drawn.of
    patch.setattr(Drawn, "of", lambda *given: sound(*given[:-1], {}))


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """Of the tokens that a sequence is told late, one is another."""
    sound: Callable[[LateTokens, int], list[int]] = LateTokens.take
    patch.setattr(LateTokens, "take", lambda self, place: [*sound(self, place)[:-1], 9])


@pytest.mark.parametrize("fault", [deaf_to_stops, forgetful])
def test_a_fault_of_columns_is_seen(
    traffic: Traffic, fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asked, apart, _ = traffic
    fault(monkeypatch)
    found = run(tight(traffic, "off"), asked[:4])
    assert any(said(found[r.request_id]) != said(wanted) for r, wanted in zip(asked, apart, strict=False))


def test_columns_of_ragged_tokens() -> None:
    """Tokens are told once each, in order; a sequence that leaves takes nobody's along."""
    late = LateTokens(3, 8)
    for first, counts in ((10, [1, 3, 2]), (50, [2, 1, 1])):
        tokens = first + np.arange(9).reshape(3, 3)
        stands = np.arange(3) < np.array(counts)[:, None]
        late.note(Drawn(
            tokens=tokens, places=tokens, stands=stands, counts=np.array(counts),
            verified=tokens[:, :2], is_stopped=stands[:, 0],
        ))  # fmt: skip
        if first == 10:
            assert late.take(1) == [13, 14, 15]
    assert not late.has_room(6)
    late.keep(np.array([False, True, True]))
    assert (late.take(0), late.take(1), late.take(1)) == ([53], [16, 17, 56], [])
