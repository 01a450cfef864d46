"""Prefix hits, decoding and resumption against plain prefill: the same bytes, and faults that are seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deepinfer.engine.api import (
    CacheFormat,
    Completion,
    EngineConfig,
    GenerateRequest,
    PrefillMode,
    RequestFailure,
    SamplingParams,
    ScoreRequest,
    ScoreResult,
    TokenRecord,
)
from deepinfer.engine.cache.snapshots import Snapshot
from deepinfer.engine.core import CoreConfig, EngineCore
from deepinfer.engine.llm import LLM
from deepinfer.engine.prefill import PrefillRule, prefill_rule
from deepinfer.engine.scheduler import Limits, Scheduler
from deepinfer.engine.sequence import Sequence

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def ids(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(4, 500, length).tolist()


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    """Window 16, default keep 24; blocks are 128 tokens everywhere."""
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


def core(
    llm: LLM, mode: PrefillMode = PrefillMode.OFF, keep: int | None = None, **changes: object
) -> EngineCore:
    config = CoreConfig(limits=Limits(max_rows=512, max_chunk=None, max_sequences=4), num_blocks=16)
    return EngineCore(llm._model, prefill_rule(llm.model_config, mode, keep), replace(config, **changes))


def run(engine: EngineCore, prompt: list[int], params: SamplingParams = GREEDY) -> list[TokenRecord]:
    assert engine.add(GenerateRequest(request_id="x", token_ids=prompt, params=params)) is None
    records = []
    while engine.has_unfinished:
        records += engine.step()
    return records


@pytest.mark.parametrize("cache_format", list(CacheFormat))
def test_decoding_is_prefill(llm: LLM, cache_format: CacheFormat) -> None:
    """256 generated tokens: each raw log-probability is the one that scoring the whole text gives."""
    engine = llm.with_config(replace(llm.config, cache_format=cache_format))
    no_image = {511: -np.inf}  # scoring refuses the image placeholder
    params = SamplingParams(seed=3, max_tokens=256, ignore_eos=True, logit_bias=no_image)
    (samples,) = engine.generate([GenerateRequest(request_id="g", token_ids=ids(50), params=params)])
    assert isinstance(samples, tuple)
    completion = samples[0]
    assert isinstance(completion, Completion)
    assert len(completion.token_ids) == 256
    (scored,) = engine.score([ScoreRequest(request_id="s", token_ids=[*ids(50), *completion.token_ids])])
    assert isinstance(scored, ScoreResult)
    decoded = np.array([record.raw_logprob for record in completion.records], np.float32)
    assert decoded.tobytes() == scored.logprobs[50:].tobytes()


@pytest.mark.parametrize("mode", list(PrefillMode))
@pytest.mark.parametrize("shared", [127, 128, 129, 255, 256, 257, 15 + 128, 16 + 128, 17 + 128])
def test_a_hit_has_the_bits_of_a_miss(llm: LLM, mode: PrefillMode, shared: int) -> None:
    """Shared lengths around blocks and the window past a block; prompts end just behind them, or later."""
    for extra in (1, 23, 24, 25, 60):
        prompt = ids(shared) + ids(extra, seed=extra)
        warm = core(llm, mode)
        run(warm, ids(shared) + ids(150, seed=7))
        before = warm.prefixes.tree.stats.hit_tokens
        hit = run(warm, prompt)
        limit = len(prompt) - 1 if mode is PrefillMode.OFF else len(prompt) - 24
        assert warm.prefixes.tree.stats.hit_tokens - before == min(shared, max(limit, 0)) // 128 * 128
        assert hit == run(core(llm, mode), prompt)


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_hits_around_the_keep_edge(llm: LLM, offset: int) -> None:
    """In compact mode a hit ends at most at N - keep: one token less and a whole block is lost."""
    prompt = ids(256 + 24 + offset)
    warm = core(llm, PrefillMode.COMPACT)
    run(warm, ids(400)[: len(prompt)] + ids(200, seed=5))
    hit = run(warm, prompt)
    assert warm.prefixes.tree.stats.hit_tokens == (256 if offset >= 0 else 128)
    assert hit == run(core(llm, PrefillMode.COMPACT), prompt)


def test_generated_blocks_are_reused(llm: LLM) -> None:
    params = replace(GREEDY, max_tokens=140)
    warm = core(llm)
    first = run(warm, ids(100), params)
    follow_up = ids(100) + [r.token_id for r in first if r.token_id is not None] + ids(9, seed=4)
    hit = run(warm, follow_up)
    assert warm.prefixes.tree.stats.hit_tokens == 128
    assert [record.num_hit_tokens for record in hit] == [0] * (len(hit) - 1) + [128]
    assert hit == run(core(llm), follow_up)


PROMPTS = {"a": ids(120, seed=1), "b": ids(120, seed=2), "c": ids(120, seed=3)}
DRAWN = SamplingParams(temperature=0.9, seed=11, max_tokens=60, ignore_eos=True)


def crowded(llm: LLM, mode: PrefillMode) -> dict[str, list[TokenRecord]]:
    """Three requests in an engine with room for two, so that one has to be computed again."""
    tight = core(llm, mode, num_blocks=4, prefix_caching=False)
    for name, prompt in PROMPTS.items():
        assert tight.add(GenerateRequest(request_id=name, token_ids=prompt, params=DRAWN)) is None
    records: dict[str, list[TokenRecord]] = {name: [] for name in PROMPTS}
    while tight.has_unfinished:
        for record in tight.step():
            records[record.request_id].append(record._replace(request_id="x"))
    assert tight.scheduler.stats.num_preemptions > 0
    return records


@pytest.mark.parametrize("mode", list(PrefillMode))
def test_a_preempted_request_goes_on_as_if_nothing_had_happened(llm: LLM, mode: PrefillMode) -> None:
    records = crowded(llm, mode)
    for name, prompt in PROMPTS.items():
        assert records[name] == run(core(llm, mode), prompt, DRAWN)


def test_a_kept_rectangle_that_moves_with_the_output_is_seen(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: recomputation that takes prompt and output together for the prompt."""
    honest = crowded(llm, PrefillMode.COMPACT)
    chunk = Sequence.chunk
    monkeypatch.setattr(
        Sequence,
        "chunk",
        lambda self, rows, drafts: replace(chunk(self, rows, drafts), prompt_length=len(self.token_ids)),
    )
    assert crowded(llm, PrefillMode.COMPACT) != honest


def test_nobody_starves(llm: LLM) -> None:
    """Long answers keep the engine busy; a late short request still finishes long before them."""
    engine = core(llm, limits=Limits(max_rows=8, max_chunk=4, max_sequences=4))
    for i in range(3):
        params = replace(GREEDY, max_tokens=120)
        request = GenerateRequest(request_id=f"long{i}", token_ids=ids(20, seed=i), params=params)
        assert engine.add(request) is None
    finished: list[str] = []
    for step in range(400):
        if step == 10:
            assert engine.add(GenerateRequest(request_id="late", token_ids=ids(30), params=GREEDY)) is None
        finished += [record.request_id for record in engine.step() if record.finish_reason]
        if "late" in finished:
            assert step < 40
            break
    assert finished == ["late"]


def test_abort_gives_a_last_record_and_frees_everything(llm: LLM) -> None:
    engine = core(llm)
    request = GenerateRequest(request_id="x", token_ids=ids(30), params=replace(GREEDY, n=2))
    assert engine.add(request) is None
    engine.step()
    last = engine.abort("x")
    assert [(r.sample_index, r.token_id, r.finish_reason) for r in last] == [
        (0, None, "abort"),
        (1, None, "abort"),
    ]
    assert not engine.has_unfinished
    assert engine.pool.num_used == 0
    assert engine.abort("x") == []


def test_stop_callback_and_bad_requests(llm: LLM) -> None:
    def three(emitted: object) -> bool:
        return len(emitted) == 3  # type: ignore[arg-type]

    results = llm.generate(
        [
            GenerateRequest(request_id="a", token_ids=ids(9), params=GREEDY, should_stop=three),
            GenerateRequest(request_id="b", token_ids=[], params=GREEDY),
            GenerateRequest(request_id="c", token_ids=ids(9), params=replace(GREEDY, temperature=-1.0)),
            GenerateRequest(request_id="a", token_ids=ids(5), params=GREEDY),
        ]
    )
    assert isinstance(results[0], tuple)
    assert results[0][0].finish_reason == "stop"
    assert len(results[0][0].token_ids) == 3
    assert all(isinstance(results[i], RequestFailure) for i in (1, 2))
    too_long = core(llm, num_blocks=1).add(GenerateRequest(request_id="d", token_ids=ids(128), params=GREEDY))
    assert too_long is not None
    assert too_long.reason == "d: 128 tokens do not fit 1 cache blocks of 128; allow more blocks"


def seeded(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Break the engine in one place."""
    if name == "stale ring":
        monkeypatch.setattr(Snapshot, "restore", lambda self, caches, slot, boundary: None)
    elif name == "late boundary":
        whole = PrefillRule.encoder_window_low
        monkeypatch.setattr(
            PrefillRule,
            "encoder_window_low",
            lambda self, p: np.minimum(whole(self, p) + (len(p) == 1), p),
        )


def resumed(llm: LLM, mode: PrefillMode) -> list[TokenRecord]:
    warm = core(llm, mode)
    run(warm, ids(128) + ids(150, seed=7))
    return run(warm, ids(128) + ids(60, seed=8), replace(GREEDY, max_tokens=30))


@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        ("stale ring", PrefillMode.OFF),
        ("late boundary", PrefillMode.OFF),
    ],
)
def test_seeded_faults_are_seen(
    llm: LLM, fault: str, mode: PrefillMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls: stale rings, a window one short in decoding."""
    honest = run(core(llm, mode), ids(128) + ids(60, seed=8), replace(GREEDY, max_tokens=30))
    assert resumed(llm, mode) == honest
    seeded(monkeypatch, fault)
    assert resumed(llm, mode) != honest


def test_a_draw_keyed_by_the_slot_is_seen(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: seeds that depend on where a request stands."""
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=8, ignore_eos=True)
    honest = run(core(llm), ids(20), params)
    add = Scheduler.add

    def faulty(self: Scheduler, sequence: Sequence) -> None:
        sequence.seed += len(self.waiting) + len(self.running)
        add(self, sequence)

    def beside_another() -> list[TokenRecord]:
        engine = core(llm)
        assert (
            engine.add(GenerateRequest(request_id="other", token_ids=ids(9, seed=9), params=params)) is None
        )
        return [r for r in run(engine, ids(20), params) if r.request_id == "x"]

    assert beside_another() == honest
    monkeypatch.setattr(Scheduler, "add", faulty)
    assert beside_another() != honest


@pytest.mark.parametrize("mode", list(PrefillMode))
def test_prompt_scores_are_those_of_scoring(llm: LLM, mode: PrefillMode) -> None:
    """Chunked, beside others, after the same prompt was cached, and computed again after a preemption."""
    scorer = llm.with_config(replace(llm.config, prefill=mode))
    engine = core(llm, mode, num_blocks=4, limits=Limits(max_rows=70, max_chunk=33, max_sequences=3))
    seen: dict[str, list[TokenRecord]] = {name: [] for name in PROMPTS}
    for _ in range(2):
        for name, prompt in PROMPTS.items():
            request = GenerateRequest(request_id=name, token_ids=prompt, params=DRAWN, prompt_logprobs=True)
            assert engine.add(request) is None
        while engine.has_unfinished:
            for record in engine.step():
                seen[record.request_id].append(record)
    assert engine.scheduler.stats.num_preemptions > 0
    for name, prompt in PROMPTS.items():
        (want,) = scorer.score([ScoreRequest(request_id=name, token_ids=prompt)])
        assert isinstance(want, ScoreResult)
        scored = [record.prompt for record in seen[name] if record.prompt is not None]
        assert len(scored) == 2, "once for each request, on its first token"
        for got in scored:
            assert got.valid.tolist() == want.valid.tolist()
            assert got.logprobs.tobytes() == want.logprobs.tobytes()
            assert got.ranks.tolist() == want.ranks.tolist()
        assert want.valid.sum() == (len(prompt) - 1 if mode is PrefillMode.OFF else llm.rule.keep - 1)
