"""Speculation and asynchrony: the bytes of plain decoding, and no trace of rejected rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from speculation_play import FIXED, LIMITS, finished, requests, stopping, trace, tree_of
from trace_play import alone, check, core_of, packed

from deepinfer.engine.api import EngineConfig, PrefillMode
from deepinfer.engine.core import CoreConfig, EngineCore
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation.drafter import DraftPoint, KnownContinuation, ModelDrafter


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    """Window 16, blocks of 128 tokens, drafts of 5."""
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


@pytest.mark.parametrize("is_asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("num_drafts", range(1, 6))
def test_every_draft_length_gives_the_bytes_of_plain_decoding(
    llm: LLM, num_drafts: int, is_asynchronous: bool
) -> None:
    played = trace(
        speculation=replace(FIXED, num_drafts=num_drafts),
        asynchronous=is_asynchronous,
        prefix_caching=num_drafts % 2 == 0,
    )
    core = core_of(llm, played)
    assert check(llm, played, core) == 3 * 16
    assert core.scheduler.stats.num_steps < 1 + 16, "drafts were accepted"


@pytest.mark.parametrize("mode", list(PrefillMode))
def test_prefill_modes(llm: LLM, mode: PrefillMode) -> None:
    played = trace(mode, asynchronous=True)
    assert check(llm, played, core_of(llm, played)) == 3 * 16


def test_a_step_gives_all_that_a_known_text_says(llm: LLM) -> None:
    request = requests(1, max_tokens=25, length=60)[0]
    records, _ = alone(llm, PrefillMode.OFF, request, 0)
    text = [record.token_id for record in records if record.token_id is not None]
    config = trace().core
    core = EngineCore(llm._model, llm.rule, config, KnownContinuation({("r0", 0): text}))
    assert core.add(request) is None
    steps = []
    while core.has_unfinished:
        steps.append(core.step())
    assert [len(step) for step in steps] == [1, 6, 6, 6, 6]
    assert [packed(r) for step in steps for r in step] == [packed(r) for r in records]


def test_rejected_rows_leave_no_trace_in_the_prefix_tree(llm: LLM) -> None:
    """Draft contexts are checked against a twin that verifies no draft: the same snapshots to the byte."""
    given = requests(2)
    config = CoreConfig(limits=LIMITS, num_blocks=24)
    plain = tree_of(finished(llm, config, given))
    speculated = tree_of(finished(llm, replace(config, speculation=FIXED), given))
    layers = range(llm.model_config.num_hidden_layers)
    assert len(plain) == 2
    assert {path: {n: rings[n] for n in layers} for path, rings in speculated.items()} == plain
    narrow = tree_of(finished(llm, replace(config, speculation=replace(FIXED, num_drafts=1)), given))
    assert narrow == speculated


def test_drafts_do_not_depend_on_the_company_or_on_a_hit(llm: LLM) -> None:
    """Confidences too are bits: those after a hit, a chunk or a rejection are those of the text alone."""
    request = requests(1, max_tokens=30, length=150)[0]
    seen: list[dict[int, tuple[bytes, bytes]]] = []
    config = replace(trace().core, prefix_caching=True)
    warm = core_of(llm, trace(prefix_caching=True))
    for core in (warm, warm, core_of(llm, trace(limits=replace(LIMITS, max_chunk=7)))):
        drafts: dict[int, tuple[bytes, bytes]] = {}
        assert core.add(request) is None
        while core.has_unfinished:
            core.step()
            sequence = core.sequence("r0", 0)
            if sequence is not None and sequence.drafts.size:
                found = sequence.drafts
                drafts[sequence.num_tokens] = found.tokens.tobytes(), found.confidences.tobytes()
        seen.append(drafts)
    assert warm.prefixes.tree.stats.hit_tokens == 128
    assert len(seen[0]) > 10
    assert seen[1] == seen[0] == seen[2]
    assert config.prefix_caching


def test_drafts_of_a_narrow_block_are_a_function_of_their_anchors(llm: LLM) -> None:
    """Two rows alone are those two rows in company; of a whole block they would have seen the other rows."""
    request = requests(2, max_tokens=4, length=150)
    core = core_of(llm, trace(speculation=replace(FIXED, num_drafts=2)))
    for given in request:
        assert core.add(given) is None
    while not all(sequence.num_emitted for sequence in core._live.values()):
        core.step()
    drafter = ModelDrafter(llm._draft, llm.rule)
    points = [DraftPoint(s, int(s.token_ids[-1]), s.num_tokens - 1) for s in core._live.values()]
    together = drafter.propose(points, core.caches, 2)
    for point, found in zip(points, together, strict=True):
        (alone_,) = drafter.propose([point], core.caches, 2)
        (whole,) = drafter.propose([point], core.caches, 5)
        assert found.tokens.tobytes() == alone_.tokens.tobytes()
        assert found.confidences.tobytes() == alone_.confidences.tobytes()
        assert found.confidences.tobytes() != whole.confidences[:2].tobytes()


def test_a_model_without_drafts_and_too_many_drafts_are_refused(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="blocks of 1 to 5"):
        core_of(llm, trace(speculation=replace(FIXED, num_drafts=6)))


# ---------------------------------------------------------------- what ends while a step is in flight


@pytest.mark.parametrize("place", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("kind", ["token", "text"])
def test_a_stop_at_any_place_of_a_block(llm: LLM, kind: str, place: int) -> None:
    """A stop token, or a stop string that the caller finds: nothing behind it is emitted or remembered."""
    request, token = stopping(llm, place)
    if kind == "token":
        request = replace(request, params=replace(request.params, stop_token_ids=(token,)))
    else:
        request = replace(request, should_stop=lambda ids: token in ids)
    config = CoreConfig(limits=LIMITS, num_blocks=12)
    for asynchronous in (False, True):
        plain = finished(llm, config, (request,))
        core = finished(llm, replace(config, speculation=FIXED, asynchronous=asynchronous), (request,))
        assert tree_of(core).keys() == tree_of(plain).keys()


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_an_abort_while_a_step_is_in_flight(llm: LLM, step: int) -> None:
    """Slot and blocks go to others only when the step that writes to them has landed."""
    base = trace(limits=replace(LIMITS, max_sequences=2), num_blocks=5, asynchronous=True)
    played = replace(base, aborts={step: "r0"})
    check(llm, played, core_of(llm, played))


def test_preemption_waits_for_the_step_in_flight(llm: LLM) -> None:
    given = tuple(replace(r, token_ids=r.token_ids[:100]) for r in requests(3, max_tokens=50))
    base = trace(num_blocks=4, prefix_caching=False, asynchronous=True)
    played = replace(base, requests=given, arrivals=(0, 0, 0))
    core = core_of(llm, played)
    assert check(llm, played, core) == 3 * 50
    assert core.scheduler.stats.num_preemptions > 0
