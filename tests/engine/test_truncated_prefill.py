"""Truncated prefill: mask equals compact bit for bit.

Both equal full prefill exactly where model.md 10.4 says so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.engine.api import EngineConfig, PrefillMode, ScoreRequest, ScoreResult
from deepinfer.engine.draft_request import DraftRequest, DraftResult
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.llm import LLM
from deepinfer.engine.prefill import PrefillRule

LENGTH = 200


def ids(length: int = LENGTH) -> list[int]:
    return np.random.default_rng(9).integers(4, 500, length).tolist()


@pytest.fixture(scope="module")
def small_dir(golden_dir: Path) -> Path:
    """Window 16, three decoder layers (5, 6, 7): an exact halo of 1 + 3 * 15 = 46 rows."""
    return golden_dir / "ckpt_A_quantized"


def engine(folder: Path, mode: PrefillMode, keep: int | None = None, chunk: int | None = None) -> LLM:
    return LLM(folder, EngineConfig(prefill=mode, keep=keep, max_chunk_tokens=chunk, num_threads=2))


def result(llm: LLM, token_ids: list[int]) -> ScoreResult:
    (scored,) = llm.score([ScoreRequest(request_id="x", token_ids=token_ids, return_logits=True)])
    assert isinstance(scored, ScoreResult)
    return scored


@pytest.mark.parametrize("chunk", [None, 1, 7, 64, 161])
def test_mask_equals_compact(small_dir: Path, chunk: int | None) -> None:
    mask, compact = engine(small_dir, PrefillMode.MASK, 40), engine(small_dir, PrefillMode.COMPACT, 40, chunk)
    a, b = result(mask, ids()), result(compact, ids())
    assert a.valid.tolist() == b.valid.tolist() == [p > LENGTH - 40 for p in range(LENGTH)]
    assert np.isnan(a.logprobs[: LENGTH - 40]).all()
    assert a.logprobs.tobytes() == b.logprobs.tobytes()
    assert a.logits is not None
    assert b.logits is not None
    assert a.logits.tobytes() == b.logits.tobytes()
    states = mask.prefill_state(ids()), compact.prefill_state(ids())
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert value.tobytes() == states[1][name].tobytes(), name
    drafts = [llm.draft([DraftRequest(request_id="d", token_ids=ids())])[0] for llm in (mask, compact)]
    assert isinstance(drafts[0], DraftResult)
    assert isinstance(drafts[1], DraftResult)
    assert drafts[0].tokens.tobytes() == drafts[1].tokens.tobytes()
    assert drafts[0].confidences.tobytes() == drafts[1].confidences.tobytes()


@pytest.mark.parametrize("mode", [PrefillMode.MASK, PrefillMode.COMPACT])
def test_keeping_everything_is_full_prefill(small_dir: Path, mode: PrefillMode) -> None:
    full, kept = (
        result(engine(small_dir, PrefillMode.OFF), ids()),
        result(engine(small_dir, mode, LENGTH), ids()),
    )
    assert full.logprobs.tobytes() == kept.logprobs.tobytes()


def test_the_halo_makes_the_last_row_exact(small_dir: Path) -> None:
    full = result(engine(small_dir, PrefillMode.OFF), ids()).final_logits
    halo = result(engine(small_dir, PrefillMode.COMPACT, 46), ids()).final_logits
    short = result(engine(small_dir, PrefillMode.COMPACT, 22), ids()).final_logits
    assert full is not None
    assert halo is not None
    assert short is not None
    assert halo.tobytes() == full.tobytes()
    assert short.tobytes() != full.tobytes()  # negative control: truncation is an approximation


def test_what_truncation_leaves_untouched(small_dir: Path) -> None:
    """Encoder caches and the boundary's compressed entries cover every position and equal full prefill."""
    full = engine(small_dir, PrefillMode.OFF).prefill_state(ids())
    compact = engine(small_dir, PrefillMode.COMPACT, 40).prefill_state(ids())
    for name in ["window.0", "window.4", "main.2", "index_key.2", "main.5", "index_key.5"]:
        assert full[name].tobytes() == compact[name].tobytes(), name
    # what the rings of 22 remember: layer 5 sees its exact input, layer 7 misses 2 * 15 positions of history
    assert full["window.5"].tobytes() == compact["window.5"].tobytes()
    assert full["window.7"].tobytes() != compact["window.7"].tobytes()


def test_rows_equal_full_prefill_exactly_when_their_halo_is_kept(small_dir: Path) -> None:
    def streams(mode: PrefillMode) -> dict[int, torch.Tensor]:
        seen: dict[int, torch.Tensor] = {}

        def probe(name: str, layer: int, value: torch.Tensor) -> None:
            if name == "block_in":
                seen[layer] = value.clone()

        engine(small_dir, mode, 60).observe(ids(), probe)
        return seen

    full, compact = streams(PrefillMode.OFF), streams(PrefillMode.COMPACT)
    for i, layer in enumerate((6, 7, 8)):  # the output of layer 5 + i enters layer 6 + i
        bound = (i + 1) * 15
        kept = full[layer][-60:]
        assert torch.equal(kept[bound:].view(torch.int32), compact[layer][bound:].view(torch.int32))
        assert not torch.equal(kept[0], compact[layer][0])


def test_default_keep_is_the_window_and_a_block(small_dir: Path) -> None:
    assert engine(small_dir, PrefillMode.COMPACT).rule.keep == 16 + 8


def test_too_few_kept_rows_are_refused(small_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"must keep at least 22 rows .*got keep 21"):
        engine(small_dir, PrefillMode.COMPACT, 21)


def test_positions_of_a_rule() -> None:
    rule = PrefillRule(mode=PrefillMode.COMPACT, keep=10, window=4)
    assert rule.low(25) == 15
    assert rule.low(10) == 0
    chunks = np.array([[12, 18, 25], [3, 9, 25], [16, 20, 25]]).T
    assert rule.decoder_starts(*chunks).tolist() == [15, 9, 16]
    positions = np.array([13, 15, 16, 24])
    assert rule.decoder_window_low(positions, np.full(4, 25)).tolist() == [14, 15, 15, 21]
    assert rule.encoder_window_low(positions).tolist() == [10, 12, 13, 21]
