"""What an engine must offer to be verified, so that the checks run on fakes as well as on the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from deepinfer.engine.api import (
    EngineConfig,
    Float32Array,
    GenerateRequest,
    PrefillMode,
    RequestFailure,
    ScoreRequest,
    ScoreResult,
)
from deepinfer.engine.draft_request import DraftRequest, DraftResult


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What an engine generated for one request.

    Attributes:
        token_ids: the emitted tokens, in order.
        positions: absolute position of each.
        rows: per token the raw logits row float32 [V] that it was chosen from.
        raw_logprobs, processed_logprobs: of each token, nats.
        num_hit_tokens: prompt positions that came from the prefix cache.
        num_preemptions: how often the request lost its caches and was computed again.
        num_accepted: drafts that were accepted, of all requests.
        num_ahead: steps that were planned while another ran.
    """

    token_ids: Sequence[int]
    positions: Sequence[int]
    rows: Sequence[Float32Array]
    raw_logprobs: Sequence[float]
    processed_logprobs: Sequence[float]
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    num_accepted: int = 0
    num_ahead: int = 0


class Subject(Protocol):
    """An engine under test, opened with one configuration."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult | RequestFailure]:
        """Score the requests together; results stand in the order of the requests."""
        ...

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftResult | RequestFailure]:
        """Draft a block at each anchor of each request; results stand in the order of the requests."""
        ...

    def generate(self, requests: Sequence[GenerateRequest], target: str) -> Generated | RequestFailure:
        """Continue the requests together and report the one called ``target``.

        An empty name asks for none: whatever is returned then means nothing.
        """
        ...

    def prefill_state(self, token_ids: Sequence[int]) -> Mapping[str, npt.NDArray[Any]]:
        """Every cache entry that a prefill of the sequence leaves behind, by name."""
        ...


class SubjectFactory(Protocol):
    """Opens the engine under test with another configuration of the same model."""

    def __call__(self, config: EngineConfig) -> Subject:
        """Open it, with caches of its own; errors are those of the engine."""
        ...


@dataclass(frozen=True, kw_only=True)
class PlannedChunk:
    """Positions ``[start, end)`` of one prompt within a step.

    Attributes:
        start: first position.
        end: one past the last.
        num_tokens: length of the whole prompt.
        base: storage row of the prompt's position 0.
    """

    start: int
    end: int
    num_tokens: int
    base: int


@dataclass(frozen=True, kw_only=True)
class DecoderRows:
    """Rows that the decoder layers of one step compute, and what each of them may read and writes.

    Attributes:
        kept: [R] their places among all packed rows of the step.
        positions: [R] absolute positions.
        window: [R, W] storage row behind each window slot: slot s of the row at p stands for position
            p - W + 1 + s of the same prompt; -1 where the row does not see it.
        slots: [R] storage row that the row writes, -1 for none (a row of mask before the kept ones).
        visible: [R] compressed entries that the row may select from.
    """

    kept: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    window: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    visible: npt.NDArray[np.int64]


class PlanRows(Protocol):
    """The engine's own planning of truncated prefill, without a model."""

    def __call__(self, chunks: Sequence[PlannedChunk], keep: int, mode: PrefillMode) -> DecoderRows:
        """Plan one step over chunks of different prompts, of which each keeps its last ``keep`` rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Token ids of the beginning of one bundled document.

    Attributes:
        sample_id: the document's name.
        token_ids: begin token first.
        workload: the bundled workload it belongs to, as reports group it.
    """

    sample_id: str
    token_ids: tuple[int, ...]
    workload: str = ""
