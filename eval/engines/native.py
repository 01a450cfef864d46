"""The package's own engine as a scorer and a source of continuations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from deepinfer.engine.api import (
    EngineConfig,
    GenerateRequest,
    PrefillMode,
    RequestFailure,
    ScoreRequest,
    TokenRecord,
)
from deepinfer.engine.llm import LLM
from deepinfer.eval.engines.protocol import Outcome


class NativeScorer:
    """Adapter on :class:`deepinfer.engine.llm.LLM`; a ``Scorer`` that generates too."""

    name = "native"

    def __init__(self, model: Path | None = None, config: EngineConfig | None = None) -> None:
        """Load the checkpoint in folder ``model``, or the bundled one when it is None."""
        self._llm = LLM(model, config or EngineConfig())

    @classmethod
    def over(cls, llm: LLM) -> Self:
        """A scorer on a model that is loaded already."""
        scorer = cls.__new__(cls)
        scorer._llm = llm
        return scorer

    @property
    def config(self) -> EngineConfig:
        """How the model runs."""
        return self._llm.config

    @property
    def keep(self) -> int | None:
        """Trailing rows that truncated prefill keeps; None in mode off."""
        return None if self.config.prefill is PrefillMode.OFF else self._llm.rule.keep

    @property
    def model_dir(self) -> Path:
        """Checkpoint folder."""
        return self._llm.model_dir

    @property
    def checkpoint_digest(self) -> str:
        """Hex sha256 over configuration, tokenizer and weights; read from the files on first use."""
        return self._llm.model_digest

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._llm.model_config.vocab_size

    @property
    def bos_token_id(self) -> int:
        """The id that starts a text."""
        return self._llm.model_config.bos_token_id

    @property
    def max_context(self) -> int:
        """Most ids one request may hold."""
        return self._llm.model_config.max_position_embeddings

    def score(self, requests: Sequence[ScoreRequest]) -> list[Outcome]:
        """Score all requests, in order."""
        return list(self._llm.score(requests))

    def score_iter(self, requests: Iterable[ScoreRequest]) -> Iterator[Outcome]:
        """Score a stream of requests, in order."""
        return iter(self._llm.score_iter(requests))

    def generate_iter(self, requests: Sequence[GenerateRequest]) -> Iterator[TokenRecord | RequestFailure]:
        """Continue all requests together, token by token."""
        return self._llm.generate_iter(requests)
