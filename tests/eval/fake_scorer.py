"""A scorer without a model: a log-probability is a hash of the token, the one before it and its place."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.engine.api import EngineConfig, PrefillMode, RequestFailure, ScoreRequest, ScoreResult
from deepinfer.eval.engines.protocol import Outcome


def fake_logprobs(token_ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[S] float32; position 0 is meaningless. It depends on the context, so wrong windows give wrong sums."""
    ids = np.asarray(token_ids, dtype=np.int64)
    before = np.concatenate([[0], ids[:-1]])
    mixed = (ids * 7919 + before * 104729 + np.arange(len(ids)) * 31) % 10007
    return (-mixed / 2000.0 - 0.001).astype(np.float32)


@dataclass
class FakeScorer:
    """Satisfies ``deepinfer.eval.engines.protocol.Scorer``."""

    model_dir: Path
    name: str = "fake"
    config: EngineConfig = field(default_factory=EngineConfig)
    checkpoint_digest: str = "c0ffee" * 10 + "abcd"
    vocab_size: int = 4096
    bos_token_id: int = 0
    max_context: int = 8192
    delay_s: float = 0.0
    fail_ids: frozenset[int] = frozenset()
    """A request that holds one of these token ids fails."""
    override: dict[int, float] = field(default_factory=dict)
    """Token id -> log-probability in place of the hash."""
    num_hidden: int = 0
    """Positions at the start of each request that are holes, as truncated prefill leaves them."""
    seen: list[ScoreRequest] = field(default_factory=list)

    @property
    def keep(self) -> int | None:
        return None if self.config.prefill is PrefillMode.OFF else self.config.keep or 72

    def score(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        return list(self.score_iter(requests))

    def score_iter(self, requests: Iterable[ScoreRequest]) -> Iterator[Outcome]:
        for request in requests:
            self.seen.append(request)
            time.sleep(self.delay_s)
            yield self._score_one(request)

    def _score_one(self, request: ScoreRequest) -> Outcome:
        ids = np.asarray(request.token_ids, dtype=np.int32)
        if self.fail_ids & set(ids.tolist()):
            return RequestFailure(request_id=request.request_id, reason="a token this engine refuses")
        if len(ids) > self.max_context:
            return RequestFailure(request_id=request.request_id, reason=f"{len(ids)} ids are too many")
        logprobs = fake_logprobs(request.token_ids)
        for token_id, value in self.override.items():
            logprobs[ids == token_id] = value
        valid = np.arange(len(ids)) >= max(request.score_start, self.num_hidden)
        num_top = request.num_top
        logits = final = None
        if request.return_logits:
            spread = ids[:, None] + np.arange(self.vocab_size)
            logits = np.where(valid[:, None], spread, np.nan).astype(np.float32)
            final = np.full(self.vocab_size, -5.0, np.float32)
        return ScoreResult(
            request_id=request.request_id,
            token_ids=ids,
            logprobs=np.where(valid, logprobs, np.float32(np.nan)),
            ranks=np.where(valid, ids % 7, -1).astype(np.int32),
            valid=valid,
            top_ids=np.tile(np.arange(num_top, dtype=np.int32), (len(ids), 1)) if num_top else None,
            top_logprobs=np.tile(-np.arange(num_top, dtype=np.float32), (len(ids), 1)) if num_top else None,
            logits=logits,
            final_logits=final,
        )
