"""Checks a request at the engine's edge; a bad one becomes a failure in its own place, never an exception."""

from __future__ import annotations

import numpy as np

from deepinfer.engine.api import GenerateRequest, RequestFailure, ScoreRequest
from deepinfer.engine.draft_request import DraftRequest
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.step_plan import Int64


def checked_ids(
    request: ScoreRequest | DraftRequest | GenerateRequest, config: ModelConfig
) -> Int64 | RequestFailure:
    """The token ids as int64 [S], or what is wrong with the request."""

    def failure(reason: str) -> RequestFailure:
        return RequestFailure(request_id=request.request_id, reason=f"{request.request_id}: {reason}")

    try:
        ids = np.asarray(request.token_ids)
    except (ValueError, OverflowError):
        return failure("token_ids must be a flat list of integers")
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        return failure("token_ids must be a flat list of integers")
    if ids.size == 0:
        return failure("no tokens; give at least one")
    if ids.size > config.max_position_embeddings:
        return failure(
            f"{ids.size} tokens, the model reads {config.max_position_embeddings}; cut it into windows, or "
            "allow sequences past that length (--allow-long)"
        )
    outside = (ids < 0) | (ids >= config.vocab_size)
    if outside.any():
        place = int(outside.argmax())
        return failure(f"token id {ids[place]} at position {place} is outside 0..{config.vocab_size - 1}")
    if config.image_token_id is not None and (ids == config.image_token_id).any():
        place = int((ids == config.image_token_id).argmax())
        return failure(
            f"token id {config.image_token_id} at position {place} is an image; only text is supported"
        )
    if isinstance(request, ScoreRequest):
        if not 1 <= request.score_start <= ids.size:
            return failure(f"score_start {request.score_start} is outside 1..{ids.size}")
        if not 0 <= request.num_top <= config.vocab_size:
            return failure(f"num_top {request.num_top} is outside 0..{config.vocab_size}")
    elif isinstance(request, DraftRequest):
        for anchor in request.anchors:
            if not 1 <= anchor <= ids.size:
                return failure(f"anchor {anchor} is outside 1..{ids.size}")
    return ids.astype(np.int64)
