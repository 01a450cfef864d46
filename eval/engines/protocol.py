"""What the evaluation asks of an engine: facts about it, and log-probabilities of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from deepinfer.engine.api import EngineConfig, RequestFailure, ScoreRequest, ScoreResult

Outcome = ScoreResult | RequestFailure


class Scorer(Protocol):
    """One loaded model that scores token ids; every adapter in this folder is one.

    A scorer adds no token and removes none: begin tokens, windows and truncation are the caller's.
    The bits of a result depend on the request and the engine configuration only, never on its neighbours.
    """

    @property
    def name(self) -> str:
        """Adapter name, part of every run's configuration, for example ``native``."""

    @property
    def config(self) -> EngineConfig:
        """How the model runs: profile, prefill mode, cache format."""

    @property
    def keep(self) -> int | None:
        """Trailing rows that truncated prefill keeps, the model's default resolved; None in mode off."""

    @property
    def model_dir(self) -> Path:
        """Checkpoint folder; its ``tokenizer.json`` turns text into ids."""

    @property
    def checkpoint_digest(self) -> str:
        """Hex sha256 over configuration, tokenizer and weights; part of every run's configuration."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids; ids are 0 to ``vocab_size - 1``."""

    @property
    def bos_token_id(self) -> int:
        """The id that starts a text."""

    @property
    def max_context(self) -> int:
        """Most ids one request may hold."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        """Score all requests; one outcome each, in the order of the requests."""

    def score_iter(self, requests: Iterable[ScoreRequest]) -> Iterator[Outcome]:
        """Score a stream of requests; yields in request order, each as soon as it is finished."""
