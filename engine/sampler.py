"""Chooses one token per row of logits; a row's result depends on its logits, parameters, seed and position.

The batch is only a matter of speed: random words come from a counter, and every op works on one row at a
time. Two log-probabilities leave this file. *Raw* is the model's own distribution, untouched by bias,
temperature and filters: the bits that scoring would report. *Processed* is the distribution the token was
drawn from; it is 0 for a greedy token. ``Ops.sample`` knows the processed one alone, since raw logits differ
from those it sees when a bias was added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.api import Float32Array, Int32Array, SamplingParams
from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.rng import SAMPLE, Int64, random_words
from deepinfer.kernels.interface import Ops

NUM_WORDS = 16
"""Words per draw. At most half of all words are rejected, so all of them less than once in 2**16 draws."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One token per row.

    Attributes:
        token_ids: [R] int64.
        raw_logprobs: [R] float32, of the model's own distribution.
        processed_logprobs: [R] float32, of the distribution drawn from.
        top_ids: per row [num_logprobs] int32, most likely first (ties: lower id), or None.
        top_logprobs: per row [num_logprobs] float32, raw, or None.
    """

    token_ids: Int64
    raw_logprobs: Float32Array
    processed_logprobs: Float32Array
    top_ids: list[Int32Array | None]
    top_logprobs: list[Float32Array | None]


def biased_logits(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """``logits`` [R, V] plus each row's ``logit_bias``; the same tensor if no row has one, never changed."""
    if not any(p.logit_bias for p in params):
        return logits
    biased = logits.clone()
    for row, bias in enumerate(p.logit_bias for p in params):
        if bias:
            biased[row, list(bias)] += torch.tensor(list(bias.values()), dtype=torch.float32)
    return biased


def top_tokens(ops: Ops, line: torch.Tensor, count: int) -> tuple[Int32Array, Float32Array]:
    """Ids [count] and raw log-probabilities [count] of the most likely tokens of ``line`` [V]."""
    # torch.topk alone leaves the choice among equal values open; what it says about the k-th value is exact.
    candidates = (line >= line.topk(count).values[-1]).nonzero()[:, 0]
    order = line[candidates].sort(descending=True, stable=True).indices[:count]
    ids = candidates[order]
    return ids.numpy().astype(np.int32), ops.log_softmax(line[None])[0, ids].numpy()


def sample_rows(
    ops: Ops,
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int],
    sample_indices: Sequence[int],
) -> Sampled:
    """Sample one token per row.

    Args:
        logits: float32 [R, V], raw.
        params: [R], valid ones (``sampling_rules.validate``); their ``seed`` is not read.
        seeds: [R], 64 bits each.
        positions: [R], absolute index of the token to be chosen, prompt included.
        sample_indices: [R], which of the request's ``n`` samples the row belongs to.

    Raises:
        NonFiniteError: a row holds NaN or +inf, or -inf for every token that is not banned.
    """
    biased = biased_logits(logits, params)
    ids, processed = ops.sample(
        biased,
        torch.tensor([p.temperature for p in params], dtype=torch.float32),
        torch.tensor([p.top_p for p in params], dtype=torch.float32),
        torch.tensor([min(p.top_k, logits.shape[1]) for p in params], dtype=torch.int64),
        torch.tensor([p.min_p for p in params], dtype=torch.float32),
        torch.from_numpy(_words(params, seeds, positions, sample_indices)),
    )
    raw, _ = ops.token_logprobs(logits, ids.clamp(min=0))
    for row in (~torch.isfinite(raw) | (ids < 0)).nonzero()[:, 0].tolist():
        raise NonFiniteError(
            f"row {row}: the logits for position {positions[row]} are not finite; "
            "weights or kernels are damaged, no token can be chosen"
        )
    tops = [
        top_tokens(ops, logits[row], p.num_logprobs) if p.num_logprobs else (None, None)
        for row, p in enumerate(params)
    ]
    return Sampled(
        token_ids=ids.numpy(),
        raw_logprobs=raw.numpy(),
        processed_logprobs=processed.numpy(),
        top_ids=[top[0] for top in tops],
        top_logprobs=[top[1] for top in tops],
    )


def _words(
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int],
    sample_indices: Sequence[int],
) -> npt.NDArray[np.int64]:
    """Random words [R, NUM_WORDS]; zeros in rows that need none."""
    words = np.zeros((len(params), NUM_WORDS), np.int64)
    drawn = [row for row, p in enumerate(params) if p.temperature > 0]
    if drawn:
        words[drawn] = random_words(
            np.array([seeds[row] for row in drawn], np.uint64),
            np.array([positions[row] for row in drawn], np.int64),
            SAMPLE,
            np.array([sample_indices[row] for row in drawn], np.int64),
            NUM_WORDS,
        )
    return words
