"""A fake engine whose every answer is a fixed function of the tokens, and faults seeded into it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deepinfer.engine.api import (
    EngineConfig,
    GenerateRequest,
    PrefillMode,
    RequestFailure,
    ScoreRequest,
    ScoreResult,
)
from deepinfer.engine.config import load_model_config
from deepinfer.engine.draft_request import DraftRequest, DraftResult
from deepinfer.engine.model_config import ModelConfig
from deepinfer.verify.checks import yoco_metadata
from deepinfer.verify.context import CheckContext
from deepinfer.verify.drift import log_sum_exp
from deepinfer.verify.size import Size
from deepinfer.verify.subject import DecoderRows, Generated, PlannedChunk, PlanRows, Sample

WIDTH = 16  # logits of the fake; the checks never ask how many there are
BLOCK = 3


def nothing(*_: Any) -> None:
    """The fault that is none."""


@dataclass
class Faults:
    """Seeded faults: each is called with the engine's configuration and may spoil the answer in place."""

    score: Callable[[EngineConfig, list[Any]], None] = nothing
    draft: Callable[[EngineConfig, list[Any]], None] = nothing
    generate: Callable[[EngineConfig, list[Generated]], None] = nothing
    state: Callable[[EngineConfig, dict[str, npt.NDArray[Any]]], None] = nothing
    plan: Callable[[PrefillMode, Sequence[PlannedChunk], DecoderRows], None] = nothing


def numbers(token_ids: Sequence[int], purpose: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Pseudo-random float32 numbers that depend on the tokens and the purpose only."""
    seed = zlib.crc32(np.asarray(token_ids, dtype=np.int32).tobytes(), purpose)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading tokens that two sequences share."""
    differs = [a != b for a, b in zip(one, other, strict=False)]
    return differs.index(True) if True in differs else len(differs)


class FakeSubject:
    """Answers like an engine would, at the cost of a hash a row."""

    def __init__(self, config: EngineConfig, model: ModelConfig, faults: Faults) -> None:
        self.config, self.model, self.faults = config, model, faults
        self.seen: list[list[int]] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult | RequestFailure]:
        results: list[ScoreResult | RequestFailure] = [self._score(request) for request in requests]
        self.faults.score(self.config, results)
        return results

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftResult | RequestFailure]:
        results: list[DraftResult | RequestFailure] = [self._draft(request) for request in requests]
        self.faults.draft(self.config, results)
        return results

    def generate(self, requests: Sequence[GenerateRequest], target: str) -> Generated | RequestFailure:
        """Greedy or seeded choices from the same rows that scoring gives."""
        found: list[Generated] = []
        for request in requests:
            ids, rows, drawn = list(request.token_ids), [], []
            seed = (request.params.seed or 1) % 2**31 if request.params.temperature else 0
            for _ in range(request.params.max_tokens):
                rows.append(numbers(ids, 0, (WIDTH,)))
                noise = numbers([*ids, seed], 5, (WIDTH,)) if seed else 0
                drawn.append(int((rows[-1] + noise).argmax()) + 4)
                ids.append(drawn[-1])
            first = len(request.token_ids)
            shared = [common_length(old, request.token_ids) for old in self.seen]
            found.append(
                Generated(
                    token_ids=drawn,
                    positions=list(range(first, len(ids))),
                    rows=rows,
                    raw_logprobs=[0.0] * len(rows),
                    processed_logprobs=[0.0] * len(rows),
                    num_hit_tokens=max(shared, default=0) // 128 * 128,
                    num_preemptions=int(self.config.num_cache_blocks < len(requests) + 2),
                    num_accepted=int(self.config.speculation.is_on),
                    num_ahead=int(bool(self.config.asynchronous)),
                )
            )
        self.seen += [list(request.token_ids) for request in requests]
        self.faults.generate(self.config, found)
        names = [request.request_id for request in requests]
        return found[names.index(target) if target in names else 0]

    def prefill_state(self, token_ids: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
        state: dict[str, npt.NDArray[Any]] = {
            "layer 0 window": numbers(token_ids, 8, (4, 2)),
            "layer 5 compressed": np.arange(len(token_ids), dtype=np.uint8),
        }
        self.faults.state(self.config, state)
        return state

    def _draft(self, request: DraftRequest) -> DraftResult:
        logits = np.stack([numbers(request.token_ids[:stop], 7, (BLOCK, WIDTH)) for stop in request.anchors])
        tokens = np.concatenate([np.zeros((len(logits), 1)), logits.argmax(axis=2)], axis=1)
        return DraftResult(
            request_id=request.request_id,
            anchors=np.array(request.anchors, dtype=np.int32),
            tokens=tokens.astype(np.int32),
            base_logits=logits - 1,
            logits=logits,
            confidence_logits=logits[:, :, 0].copy(),
            confidences=np.abs(logits[:, :, 1]),
        )

    def _score(self, request: ScoreRequest) -> ScoreResult:
        ids = np.asarray(request.token_ids, dtype=np.int32)
        length = len(ids)
        rows = np.stack([numbers(ids[:stop], 0, (WIDTH,)) for stop in range(1, length + 1)])
        keep = self.config.keep or self.model.default_keep
        first = 0 if self.config.prefill is PrefillMode.OFF else max(0, length - keep)
        if first > 0:  # truncated: another function, as in the real model
            rows = rows + np.float32(0.01)
        valid = np.arange(length) > first
        logits = np.full((length, WIDTH), np.nan, dtype=np.float32)
        logits[1:] = rows[:-1]
        logits[~valid] = np.nan
        logprobs = logits[:, 0] - log_sum_exp(logits).astype(np.float32)
        return ScoreResult(
            request_id=request.request_id,
            token_ids=ids,
            logprobs=logprobs.astype(np.float32),
            ranks=np.where(valid, 3, -1).astype(np.int32),
            valid=valid,
            logits=logits,
            final_logits=rows[-1].copy(),
        )


def fake_plan(model: ModelConfig, faults: Faults) -> PlanRows:
    """The definition of truncated prefill, written row by row."""
    window = model.sliding_window

    def plan(chunks: Sequence[PlannedChunk], keep: int, mode: PrefillMode) -> DecoderRows:
        rows, place = [], -1
        for chunk in chunks:
            low = max(0, chunk.num_tokens - keep)
            for position in range(chunk.start, chunk.end):
                place += 1
                if position < low and mode is PrefillMode.COMPACT:
                    continue
                seen = [
                    chunk.base + other if other >= low and position >= low else -1
                    for other in range(position - window + 1, position + 1)
                ]
                slot = chunk.base + position if position >= low else -1
                rows.append((place, position, seen, slot, position + 1))
        columns = list(zip(*rows, strict=True)) or [()] * 5
        kept, positions, seen_slots, slots, visible = (np.array(c, dtype=np.int64) for c in columns)
        planned = DecoderRows(
            kept=kept,
            positions=positions,
            window=seen_slots.reshape(-1, window),
            slots=slots,
            visible=visible,
        )
        faults.plan(mode, chunks, planned)
        return planned

    return plan


@pytest.fixture(autouse=True)
def few_random_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake plans row by row, too slow for the full number of shapes."""
    monkeypatch.setattr(yoco_metadata, "NUM_RANDOM_STEPS", 12)


@pytest.fixture(scope="session")
def model(mini_dir: Path) -> ModelConfig:
    """The bundled model's configuration; the fake takes window and kept rows from it."""
    return load_model_config(mini_dir)


@pytest.fixture
def make_context(model: ModelConfig) -> Callable[..., CheckContext]:
    """Builds a context around the fake engine: ``make_context(score=fault, reference_dir=None)``."""

    def make(
        *,
        reference_dir: Path | None = None,
        open_subject: Callable[[EngineConfig], Any] | None = None,
        size: Size = Size.DEFAULT,
        **seeded: Callable[..., None],
    ) -> CheckContext:
        faults = Faults(**seeded)
        generator = np.random.default_rng(1)
        documents = [
            Sample(sample_id=f"doc-{i}", token_ids=(0, *generator.integers(4, 4000, 900 + i).tolist()))
            for i in range(5)
        ]
        return CheckContext(
            model=model,
            model_name="fake (bundled)",
            engine=EngineConfig(),
            open_subject=open_subject or (lambda config: FakeSubject(config, model, faults)),
            plan_rows=fake_plan(model, faults),
            load_documents=lambda: documents,
            reference_dir=reference_dir,
            size=size,
        )

    return make
