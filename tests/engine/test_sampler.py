"""Sampled rows: company, raw and processed log-probabilities, bias, alternatives."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from deepinfer.engine.api import SamplingParams
from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.sampler import Sampled, biased_logits, sample_rows, top_tokens
from deepinfer.kernels.dispatch import select_ops

OPS = select_ops("cpu", bf16=False, num_threads=2)
ONE_THREAD = select_ops("cpu", bf16=False, num_threads=1)
VOCABULARY = 500
KINDS = [
    SamplingParams(temperature=0.0, num_logprobs=3),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=4, logit_bias={3: 5.0, 499: -math.inf}),
    SamplingParams(min_p=0.05, num_logprobs=1),
    SamplingParams(temperature=2.0, top_p=0.5, top_k=50, min_p=0.01, logit_bias={0: 1.5}),
]


def draw_logits(rows: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 3


def rows_of(sampled: Sampled) -> list[tuple[object, ...]]:
    """Each row's whole result, floats as bytes."""
    tops = zip(sampled.top_ids, sampled.top_logprobs, strict=True)
    return [
        (
            int(sampled.token_ids[row]),
            sampled.raw_logprobs[row].tobytes(),
            sampled.processed_logprobs[row].tobytes(),
            None if ids is None else ids.tobytes(),
            None if values is None else values.tobytes(),
        )
        for row, (ids, values) in enumerate(tops)
    ]


def repeated(params: SamplingParams, logits: torch.Tensor, count: int) -> list[int]:
    """Tokens of one row of logits at ``count`` positions."""
    sampled = sample_rows(
        OPS, logits.expand(count, -1), [params] * count, [9] * count, range(count), [0] * count
    )
    found: list[int] = sampled.token_ids.tolist()
    return found


def test_a_row_gives_the_same_result_alone_and_anywhere_in_a_batch() -> None:
    count = 33
    logits, params = draw_logits(count), [KINDS[i % len(KINDS)] for i in range(count)]
    seeds, positions, samples = (
        [2**64 - 1 - i for i in range(count)],
        [i * i for i in range(count)],
        [1, 0, 2] * 11,
    )
    alone = [
        rows_of(sample_rows(OPS, logits[i : i + 1], [params[i]], [seeds[i]], [positions[i]], [samples[i]]))[0]
        for i in range(count)
    ]
    orders = [np.arange(count), np.arange(count)[::-1], np.arange(count) * 10 % count, np.array([4, 30])]
    orders += [np.arange(first, first + 7) for first in (0, 11, 26)]
    for ops in (OPS, ONE_THREAD):
        for order in orders:
            rows = order.tolist()
            together = sample_rows(
                ops,
                logits[rows],
                [params[i] for i in rows],
                [seeds[i] for i in rows],
                [positions[i] for i in rows],
                [samples[i] for i in rows],
            )
            assert rows_of(together) == [alone[i] for i in rows]


def test_seed_position_and_sample_index_each_choose_other_tokens() -> None:
    logits, params = torch.zeros(1, VOCABULARY).expand(40, -1), [SamplingParams()] * 40
    runs = [
        sample_rows(OPS, logits, params, seeds, positions, samples).token_ids.tolist()
        for seeds, positions, samples in (
            ([7] * 40, range(40), [0] * 40),
            ([8] * 40, range(40), [0] * 40),
            ([7] * 40, range(40, 80), [0] * 40),
            ([7] * 40, range(40), [1] * 40),
        )
    ]
    for i, mine in enumerate(runs):
        for other in runs[:i]:
            assert sum(a == b for a, b in zip(mine, other, strict=True)) < 5


def test_the_seed_in_the_parameters_is_not_read() -> None:
    logits = draw_logits(1)
    first, second = (
        sample_rows(OPS, logits, [SamplingParams(seed=seed)], [5], [0], [0]) for seed in (None, 123)
    )
    assert rows_of(first) == rows_of(second)


def test_raw_log_probabilities_are_those_of_scoring() -> None:
    logits = draw_logits(len(KINDS))
    rows = list(range(len(KINDS)))
    sampled = sample_rows(OPS, logits, KINDS, rows, rows, [0] * len(rows))
    want, _ = OPS.token_logprobs(logits, torch.from_numpy(sampled.token_ids))
    assert sampled.raw_logprobs.tobytes() == want.numpy().tobytes()
    assert sampled.processed_logprobs[0] == 0.0
    assert sampled.processed_logprobs[1].tobytes() == sampled.raw_logprobs[1].tobytes()
    assert (sampled.processed_logprobs[2:] > sampled.raw_logprobs[2:]).all()


def test_bias_moves_the_choice_and_not_the_raw_log_probability() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    greedy = SamplingParams(temperature=0.0)
    for bias, token in [({}, 1), ({0: 2.5}, 0), ({1: -math.inf}, 2), ({2: 1.0}, 1), ({3: 3.0}, 1)]:
        sampled = sample_rows(OPS, logits, [replace(greedy, logit_bias=bias)], [0], [0], [0])
        assert sampled.token_ids[0] == token
        raw = OPS.log_softmax(logits)[0, token].numpy()
        assert sampled.raw_logprobs[0].tobytes() == raw.tobytes()


def test_banned_tokens_are_never_chosen() -> None:
    logits = torch.tensor([9.0, 0.0, 9.0, 0.0])
    ban = {0: -math.inf, 2: -math.inf}
    for params in (
        SamplingParams(logit_bias=ban),
        SamplingParams(logit_bias=ban, top_k=4, top_p=0.999),
        SamplingParams(logit_bias=ban, temperature=50.0),
    ):
        assert set(repeated(params, logits, 200)) == {1, 3}
    assert set(repeated(SamplingParams(logit_bias=ban, temperature=0.0), logits, 5)) == {1}


def test_a_bias_leaves_the_logits_and_other_rows_alone() -> None:
    logits = draw_logits(2)
    copy = logits.clone()
    biased = biased_logits(logits, [SamplingParams(), SamplingParams(logit_bias={5: 1.0, 2: -math.inf})])
    assert torch.equal(logits, copy)
    assert torch.equal(biased[0], copy[0])
    assert (biased != copy).nonzero().tolist() == [[1, 2], [1, 5]]
    assert biased[1, 5] == copy[1, 5] + 1.0
    assert biased_logits(logits, [SamplingParams()] * 2) is logits


def test_alternatives_are_the_most_likely_raw_tokens_lowest_id_first() -> None:
    line = torch.tensor([0.0, 2.0, -1.0, 2.0, 0.0, 2.0, -0.0])
    for count in range(1, 8):
        ids, values = top_tokens(OPS, line, count)
        assert ids.dtype == torch.int64
        assert ids.tolist() == [1, 3, 5, 0, 4, 6, 2][:count]
        assert torch.equal(values, OPS.log_softmax(line[None])[0, ids])
    params = SamplingParams(temperature=0.3, logit_bias={1: -9.0}, num_logprobs=2)
    sampled = sample_rows(OPS, line[None], [params], [0], [0], [0])
    assert sampled.top_ids[0] is not None
    assert sampled.top_ids[0].tolist() == [1, 3]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_name_the_position(bad: float, temperature: float) -> None:
    logits = draw_logits(3)
    logits[1, 100] = bad
    with pytest.raises(NonFiniteError, match="position 41 "):
        sample_rows(
            OPS, logits, [SamplingParams(temperature=temperature)] * 3, [0] * 3, [40, 41, 42], [0] * 3
        )


def test_an_empty_batch_gives_no_rows() -> None:
    sampled = sample_rows(OPS, torch.zeros(0, 10), [], [], [], [])
    assert sampled.token_ids.shape == sampled.raw_logprobs.shape == sampled.processed_logprobs.shape == (0,)
    assert sampled.top_ids == sampled.top_logprobs == []
