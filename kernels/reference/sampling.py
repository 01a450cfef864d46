"""The sampling rule by sorting, in float64: what ``Ops.sample`` means, within rounding of a weight.

A kernel set whose float32 weights total one unit more may reject words that this one accepts, and then draws
another token; below 2**31 - V both accept every word.
"""

from __future__ import annotations

import math

import torch


def draw(weights: list[int], words: list[int]) -> int:
    """Token of the first accepted word, counted through lanes (engine.md section 7.3).

    Args:
        weights: [V] integers with a total between 1 and 2**32 - 1.
        words: 32-bit words; the last one is taken as it is if all are rejected.
    """
    num_lanes = 2048 if len(weights) >= 8192 else 1 << (len(weights) - 1).bit_length()
    total = sum(weights)
    limit = (2**32 - 1) // total * total
    rest = next((word for word in words if word < limit), words[-1]) % total
    for lane in range(num_lanes):
        for token in range(lane, len(weights), num_lanes):
            if rest < weights[token]:
                return token
            rest -= weights[token]
    raise AssertionError("the remainder is below the total")


def _row(
    line: torch.Tensor, temperature: float, top_p: float, top_k: int, min_p: float, words: list[int]
) -> tuple[int, float]:
    largest = float(line.max())
    if not math.isfinite(largest):
        return -1, 0.0 if temperature == 0 else math.nan
    if temperature == 0:
        return int((line == largest).nonzero()[0, 0]), 0.0
    scaled = (line.double() - largest) / temperature
    order = line.sort(descending=True, stable=True).indices
    chances = scaled.softmax(0)[order]
    mass = (chances * 2**31).floor()
    kept = torch.ones_like(order, dtype=torch.bool)
    if top_p < 1:
        kept &= mass.cumsum(0) - mass <= math.floor(top_p * 2**31)
    if top_k > 0:
        kept &= torch.arange(len(order)) < top_k
    if min_p > 0:
        kept &= scaled[order] >= math.log(min_p)
    chosen, total = order[kept], chances[kept].sum()
    weights = torch.zeros(len(order), dtype=torch.int64)
    weights[chosen] = (chances[kept] / total * 2**31).to(torch.int64)
    token = draw(weights.tolist(), words)
    return token, float(scaled[token] - torch.logsumexp(scaled[chosen], 0))


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    min_p: torch.Tensor,
    words: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``interface.Ops.sample``."""
    columns = (temperature.tolist(), top_p.tolist(), top_k.tolist(), min_p.tolist(), words.tolist())
    results = [_row(line, *values) for line, *values in zip(logits, *columns, strict=True)]
    ids, logprobs = zip(*results, strict=True) if results else ((), ())
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(logprobs, dtype=torch.float32)
