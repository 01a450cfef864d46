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
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.engine.api import Float32Array, Int32Array, SamplingParams
from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.transfer import Movable, fetched, moved
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.rng import SAMPLE, Int64, random_words

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

    @cached_property
    def raw_values(self) -> list[float]:
        """``raw_logprobs`` as Python numbers."""
        found: list[float] = self.raw_logprobs.tolist()
        return found

    @cached_property
    def processed_values(self) -> list[float]:
        """``processed_logprobs`` as Python numbers."""
        found: list[float] = self.processed_logprobs.tolist()
        return found


def biased_logits(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """``logits`` [R, V] plus each row's ``logit_bias``; the same tensor if no row has one, never changed."""
    if not any(p.logit_bias for p in params):
        return logits
    biased = logits.clone()
    for row, bias in enumerate(p.logit_bias for p in params):
        if bias:
            given = {"ids": torch.tensor(list(bias)), "added": torch.tensor(list(bias.values())).float()}
            here = moved(given, logits.device)
            biased[row, here["ids"]] += here["added"]
    return biased


def top_tokens(ops: Ops, line: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 [count] and raw log-probabilities [count] of the most likely tokens of ``line`` [V]."""
    if line.device.type == "cpu":
        # torch.topk alone leaves the choice among equal values open; what it says about the k-th value is
        # exact
        candidates = (line >= line.topk(count).values[-1]).nonzero()[:, 0]
        ids = candidates[line[candidates].sort(descending=True, stable=True).indices[:count]]
    else:  # how many equal the k-th value is not asked, since the answer would have to be waited for
        ids = line.sort(descending=True, stable=True).indices[:count]
    return ids, ops.log_softmax(line[None])[0, ids]


@dataclass(frozen=True, kw_only=True)
class _Rules(Movable):
    """Parameters of R rows as columns [R], and their random words int64 [R, NUM_WORDS]."""

    temperature: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    min_p: torch.Tensor
    words: torch.Tensor


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
    ids, processed = draw_rows(ops, logits, params, seeds, positions, sample_indices)
    return describe_rows(ops, logits, ids, processed, params, positions)


def draw_rows(
    ops: Ops,
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    seeds: Sequence[int],
    positions: Sequence[int],
    sample_indices: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first half of ``sample_rows``: token ids int64 [R] and processed log-probabilities float32 [R].

    An id is -1 where none can be chosen. Waits for nothing.
    """
    heats = [p.temperature for p in params], [p.top_p for p in params], [p.min_p for p in params]
    temperature, top_p, min_p = torch.from_numpy(np.array(heats, np.float32)).unbind()
    rules = _Rules(
        temperature=temperature,
        top_p=top_p,
        top_k=torch.from_numpy(np.array([min(p.top_k, logits.shape[1]) for p in params], np.int64)),
        min_p=min_p,
        words=torch.from_numpy(_words(params, seeds, positions, sample_indices)),
    )
    return launch_sampling(ops, logits, params, moved(rules, ops.device))


def launch_sampling(
    ops: Ops, logits: torch.Tensor, params: Sequence[SamplingParams], rules: _Rules
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and processed log-probabilities [R] under rules that are where the logits are."""
    return ops.sample(
        biased_logits(logits, params),
        rules.temperature,
        rules.top_p,
        rules.top_k,
        rules.min_p,
        rules.words,
    )


def describe_rows(
    ops: Ops,
    logits: torch.Tensor,
    ids: torch.Tensor,
    processed: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
) -> Sampled:
    """The second half of ``sample_rows``, for those rows whose tokens are given out.

    Raises:
        NonFiniteError: as there.
    """
    raw, _ = ops.token_logprobs(logits, ids.clamp(min=0))
    tops = {
        row: top_tokens(ops, logits[row], p.num_logprobs) for row, p in enumerate(params) if p.num_logprobs
    }
    return _fetch(positions, [ids, raw, processed], tops)


def _fetch(
    positions: Sequence[int],
    columns: Sequence[torch.Tensor],
    tops: dict[int, tuple[torch.Tensor, torch.Tensor]],
) -> Sampled:
    """What was sampled, in one copy."""
    parts = fetched(*columns, *(part for top in tops.values() for part in top))
    ids, raw, processed = (part.numpy() for part in parts[:3])
    for row in np.flatnonzero(~np.isfinite(raw) | (ids < 0)).tolist():
        raise NonFiniteError(
            f"row {row}: the logits for position {positions[row]} are not finite; "
            "weights or kernels are damaged, no token can be chosen"
        )
    top_ids: list[Int32Array | None] = [None] * len(ids)
    top_logprobs: list[Float32Array | None] = [None] * len(ids)
    for place, row in enumerate(tops):
        top_ids[row] = parts[3 + 2 * place].numpy().astype(np.int32)
        top_logprobs[row] = parts[4 + 2 * place].numpy()
    return Sampled(
        token_ids=ids,
        raw_logprobs=raw,
        processed_logprobs=processed,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
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
