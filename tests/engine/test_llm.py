"""The front door: what a request gets never depends on its company, on chunks or on threads.

Bad ones fail alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from deepinfer.engine.api import CacheFormat, EngineConfig, Profile, RequestFailure, ScoreRequest, ScoreResult
from deepinfer.engine.draft_request import DraftRequest, DraftResult
from deepinfer.engine.errors import ConfigError, InputError
from deepinfer.engine.llm import LLM


def tokens(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(4, 500, length).tolist()


def scored(llm: LLM, sequences: Sequence[Sequence[int]]) -> list[ScoreResult]:
    requests = [ScoreRequest(request_id=f"r{i}", token_ids=ids) for i, ids in enumerate(sequences)]
    results = llm.score(requests)
    assert all(isinstance(result, ScoreResult) for result in results), results
    return [result for result in results if isinstance(result, ScoreResult)]


@pytest.fixture(scope="module", params=[Profile.STRICT, Profile.FAST])
def profile(request: pytest.FixtureRequest) -> Profile:
    return Profile(request.param)


@pytest.fixture(scope="module")
def small_dir(golden_dir: Path) -> Path:
    return golden_dir / "ckpt_A_quantized"


@pytest.fixture(scope="module")
def llm(small_dir: Path, profile: Profile) -> LLM:
    return LLM(small_dir, EngineConfig(profile=profile, num_threads=2))


def test_company_and_place_move_no_bit(llm: LLM) -> None:
    target = tokens(77, seed=1)
    (alone,) = scored(llm, [target])
    for size in (2, 3, 7, 16, 33):
        fillers = [tokens(1 + (37 * i) % 90, seed=100 + i) for i in range(size - 1)]
        for place in sorted({0, size // 2, size - 1}):
            batch = [*fillers[:place], target, *fillers[place:]]
            assert scored(llm, batch)[place].logprobs.tobytes() == alone.logprobs.tobytes()


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 33, 64])
def test_chunks_move_no_bit(small_dir: Path, profile: Profile, llm: LLM, chunk: int) -> None:
    """Chunks of one token are decoding: prefill and decode are the same function."""
    sequences = [tokens(97, seed=2), tokens(20, seed=3)]
    config = EngineConfig(profile=profile, max_batch_tokens=chunk + 3, max_chunk_tokens=chunk, num_threads=2)
    chunked = scored(LLM(small_dir, config), sequences)
    for got, want in zip(chunked, scored(llm, sequences), strict=True):
        assert got.logprobs.tobytes() == want.logprobs.tobytes()
        assert got.ranks.tobytes() == want.ranks.tobytes()


def test_threads_move_no_bit(small_dir: Path, profile: Profile, llm: LLM) -> None:
    one = LLM(small_dir, EngineConfig(profile=profile, num_threads=1))
    sequences = [tokens(150, seed=4), tokens(3, seed=5)]
    for got, want in zip(scored(one, sequences), scored(llm, sequences), strict=True):
        assert got.logprobs.tobytes() == want.logprobs.tobytes()


def test_caches_after_chunks_are_those_of_one_pass(small_dir: Path, profile: Profile, llm: LLM) -> None:
    config = EngineConfig(profile=profile, max_chunk_tokens=9, num_threads=2)
    whole, chunked = llm.prefill_state(tokens(61)), LLM(small_dir, config).prefill_state(tokens(61))
    assert whole.keys() == chunked.keys()
    assert {
        "window.0",
        "main.5",
        "index_key.2",
        "pending_value.2",
        "draft_window.0",
        "hidden",
    } <= whole.keys()
    for name, value in whole.items():
        assert value.tobytes() == chunked[name].tobytes(), name


def test_profiles_differ(small_dir: Path) -> None:
    """Negative control of every byte comparison above: other arithmetic is seen."""
    runs = [scored(LLM(small_dir, EngineConfig(profile=p)), [tokens(40)])[0] for p in Profile]
    assert runs[0].logprobs.tobytes() != runs[1].logprobs.tobytes()
    assert np.abs(runs[0].logprobs[1:] - runs[1].logprobs[1:]).max() < 1.0


def test_result_arrays(llm: LLM) -> None:
    ids = tokens(30)
    (result,) = llm.score(
        [ScoreRequest(request_id="x", token_ids=ids, score_start=5, num_top=3, return_logits=True)]
    )
    assert isinstance(result, ScoreResult)
    assert result.valid.tolist() == [False] * 5 + [True] * 25
    assert np.isnan(result.logprobs[:5]).all()
    assert (result.ranks[:5] == -1).all()
    assert result.logits is not None
    assert result.final_logits is not None
    assert result.top_ids is not None
    assert result.top_logprobs is not None
    rows = result.logits[5:].astype(np.float64)
    exact = (
        rows
        - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True))
        - rows.max(1, keepdims=True)
    )
    assert np.abs(exact[np.arange(25), ids[5:]] - result.logprobs[5:]).max() < 1e-5
    assert (result.top_ids[5:, 0] == rows.argmax(1)).all()
    first = result.ranks == 0
    assert (result.top_ids[first, 0] == np.array(ids)[first]).all()
    assert result.top_logprobs[first, 0].tobytes() == result.logprobs[first].tobytes()
    longer = llm.score([ScoreRequest(request_id="y", token_ids=[*ids, 9], return_logits=True)])[0]
    assert isinstance(longer, ScoreResult)
    assert longer.logits is not None
    assert longer.logits[30].tobytes() == result.final_logits.tobytes()


def test_one_token_has_nothing_to_score(llm: LLM) -> None:
    (result,) = scored(llm, [[7]])
    assert result.valid.tolist() == [False]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([], "no tokens; give at least one"),
        ([3, 512], "token id 512 at position 1 is outside 0..511"),
        ([3, -1], "token id -1 at position 1 is outside 0..511"),
        ([5, 511], "token id 511 at position 1 is an image; only text is supported"),
        ([1.5, 2.0], "token_ids must be a flat list of integers"),
        ([[1, 2], [3, 4]], "token_ids must be a flat list of integers"),
        ([[1], [2, 3]], "token_ids must be a flat list of integers"),
        (
            [1] * 4097,
            "4097 tokens, the model reads 4096; cut it into windows, or allow sequences past that length "
            "(--allow-long)",
        ),
    ],
)
def test_a_bad_request_fails_in_its_own_place(llm: LLM, ids: list[int], reason: str) -> None:
    good = tokens(20)
    requests = [
        ScoreRequest(request_id=name, token_ids=t) for name, t in (("a", good), ("bad", ids), ("b", good))
    ]
    first, failure, last = llm.score(requests)
    assert isinstance(failure, RequestFailure)
    assert failure.reason == f"bad: {reason}"
    assert isinstance(first, ScoreResult)
    assert isinstance(last, ScoreResult)
    assert first.logprobs.tobytes() == last.logprobs.tobytes() == scored(llm, [good])[0].logprobs.tobytes()


def test_bad_bounds_of_a_request(llm: LLM) -> None:
    results = llm.score(
        [
            ScoreRequest(request_id="s", token_ids=[1, 2], score_start=3),
            ScoreRequest(request_id="t", token_ids=[1, 2], num_top=513),
        ]
    )
    assert [r.reason for r in results if isinstance(r, RequestFailure)] == [
        "s: score_start 3 is outside 1..2",
        "t: num_top 513 is outside 0..512",
    ]
    (drafted,) = llm.draft([DraftRequest(request_id="d", token_ids=[1, 2], anchors=[3])])
    assert isinstance(drafted, RequestFailure)
    assert drafted.reason == "d: anchor 3 is outside 1..2"
    with pytest.raises(InputError, match="no tokens"):
        llm.prefill_state([])


def test_no_requests(llm: LLM) -> None:
    assert llm.score([]) == []
    assert llm.draft([]) == []


def test_drafts_do_not_depend_on_company(llm: LLM) -> None:
    target = DraftRequest(request_id="t", token_ids=tokens(70), anchors=[1, 30, 70])
    (alone,) = llm.draft([target])
    others = [
        DraftRequest(request_id=f"o{i}", token_ids=tokens(10 + i, seed=i), anchors=[5]) for i in range(6)
    ]
    together = llm.draft([*others[:3], target, *others[3:]])[3]
    assert isinstance(alone, DraftResult)
    assert isinstance(together, DraftResult)
    assert alone.tokens.tobytes() == together.tokens.tobytes()
    assert alone.confidences.tobytes() == together.confidences.tobytes()
    assert ((alone.confidences > 0) & (alone.confidences < 1)).all()


def test_default_anchor_is_the_greedy_token_after_the_sequence(llm: LLM) -> None:
    ids = tokens(40)
    (drafted,) = llm.draft([DraftRequest(request_id="d", token_ids=ids)])
    (row,) = llm.score([ScoreRequest(request_id="s", token_ids=ids, return_logits=True)])
    assert isinstance(drafted, DraftResult)
    assert isinstance(row, ScoreResult)
    assert row.final_logits is not None
    assert drafted.anchors.tolist() == [40]
    assert int(drafted.tokens[0, 0]) == int(row.final_logits.argmax())


def test_cache_format_none_is_another_function(small_dir: Path) -> None:
    exact = LLM(small_dir, EngineConfig(cache_format=CacheFormat.NONE))
    released = LLM(small_dir, EngineConfig())
    a, b = (scored(engine, [tokens(80)])[0].logprobs[1:] for engine in (exact, released))
    assert a.tobytes() != b.tobytes()


def test_unknown_kernel_set_is_named(small_dir: Path) -> None:
    with pytest.raises(ConfigError, match="unknown kernel set 'fpga'; there are cpu, reference"):
        LLM(small_dir, EngineConfig(backend="fpga"))
