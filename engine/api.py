"""The shared vocabulary between the engine and its callers: plain frozen data, no torch.

Token ids go in, log-probabilities come out; text never enters the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


class Profile(StrEnum):
    """Arithmetic of activations (product.md section 4)."""

    STRICT = "strict"
    FAST = "fast"


class PrefillMode(StrEnum):
    """Which rows the decoder layers compute, and what their windows see (model.md section 10.2)."""

    OFF = "off"
    MASK = "mask"
    COMPACT = "compact"


class CacheFormat(StrEnum):
    """``released``: caches take the round trips of model.md section 8.6; ``none``: they stay exact."""

    RELEASED = "released"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How to run a model; never what the model is.

    Attributes:
        profile: arithmetic profile; part of every key and printed with every figure.
        cache_format: ``none`` is for comparison with references only.
        prefill: prefill mode of every request.
        keep: trailing rows that ``mask`` and ``compact`` keep; ``None`` is the model's default (window + 8,
            140 on the released model).
        num_threads: threads of the CPU kernels; bits never depend on it. ``None`` is all cores of the
            process.
        max_batch_tokens: rows of one forward step; bits never depend on it.
        max_chunk_tokens: longest run of one sequence in a step, ``None`` for no limit; bits never depend on
            it.
        backend: kernel set, ``cpu`` (batch-invariant) or ``reference`` (plain torch, meaning not bits).
    """

    profile: Profile = Profile.STRICT
    cache_format: CacheFormat = CacheFormat.RELEASED
    prefill: PrefillMode = PrefillMode.OFF
    keep: int | None = None
    num_threads: int | None = None
    max_batch_tokens: int = 2048
    max_chunk_tokens: int | None = None
    backend: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """One sequence to score.

    Attributes:
        request_id: name that comes back with the result; unique within a call.
        token_ids: the whole sequence, begin token included if one is wanted; the engine adds nothing.
        score_start: first position whose log-probability is wanted (at least 1: position 0 has no context).
        num_top: how many most likely tokens to return per scored position, 0 for none.
        return_logits: return the full logits rows that predict the scored positions.
    """

    request_id: str
    token_ids: Sequence[int]
    score_start: int = 1
    num_top: int = 0
    return_logits: bool = False


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """Log-probabilities of one sequence; every array has one row per token of the request.

    Attributes:
        request_id: the request's name.
        token_ids: [S] int32.
        logprobs: [S] float32, natural log of p(token at this position | tokens before it); NaN where not
            valid.
        ranks: [S] int32, how many tokens are more likely, ties broken by the lower id; -1 where not valid.
        valid: [S] bool; false at position 0, before ``score_start``, and in the rows truncated prefill skips.
        top_ids: [S, num_top] int32, most likely first, or None; rows that are not valid hold -1.
        top_logprobs: [S, num_top] float32, or None.
        logits: [S, V] float32, row p predicts position p; rows that are not valid hold NaN; or None.
        final_logits: [V] float32, the row after the last token (it predicts position S); with
            ``return_logits`` only.
    """

    request_id: str
    token_ids: Int32Array
    logprobs: Float32Array
    ranks: Int32Array
    valid: BoolArray
    top_ids: Int32Array | None = None
    top_logprobs: Float32Array | None = None
    logits: Float32Array | None = None
    final_logits: Float32Array | None = None


@dataclass(frozen=True, kw_only=True)
class RequestFailure:
    """Stands in the place of the result of a request that could not be run; its neighbours are unharmed.

    Attributes:
        request_id: the request's name.
        reason: one line that says what is wrong with the request.
    """

    request_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """Ask for a drafted block after each of some positions of one sequence.

    Attributes:
        request_id: name that comes back with the result.
        token_ids: the sequence, prompt length included in the prefill mode as for scoring.
        anchors: positions p of the first token of each block, 1 <= p <= len(token_ids). That token is
            ``token_ids[p]``, or the greedy choice after the whole sequence if p is its length. Empty: that
            one only.
        return_logits: return the draft's logits too.
    """

    request_id: str
    token_ids: Sequence[int]
    anchors: Sequence[int] = ()
    return_logits: bool = False


@dataclass(frozen=True, kw_only=True)
class DraftResult:
    """Drafted blocks of one sequence: A anchors, B tokens a block.

    Attributes:
        request_id: the request's name.
        anchors: [A] int32, as asked.
        tokens: [A, 1 + B] int32, known first token, then the greedy draft.
        confidences: [A, B] float32, estimated probability that a token is accepted if those before it were.
        confidence_logits: [A, B] float32, the same before the sigmoid.
        base_logits: [A, B, V] float32 before the Markov term, or None.
        logits: [A, B, V] float32 with it, or None.
    """

    request_id: str
    anchors: Int32Array
    tokens: Int32Array
    confidences: Float32Array
    confidence_logits: Float32Array
    base_logits: Float32Array | None = None
    logits: Float32Array | None = None
