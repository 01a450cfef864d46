"""Drafted blocks of a given text, for checks and for measuring the drafter; generation needs none of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deepinfer.engine.api import Float32Array, Int32Array


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
