"""The sampling op: filters against an exact reference, greedy rows, and what a draw reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.rng import random_words

Result = tuple[torch.Tensor, torch.Tensor]
ONE_THREAD = select_ops("cpu", bf16=False, num_threads=1)
REFERENCE = select_ops("reference", bf16=False)
SWEEP = 2048
KERNEL_SETS = pytest.mark.parametrize("ops", [ONE_THREAD, REFERENCE], ids=["cpu", "reference"])


def run(
    ops: Ops,
    logits: torch.Tensor,
    words: torch.Tensor,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> Result:
    rows = len(logits)
    return ops.sample(
        logits,
        torch.full((rows,), temperature),
        torch.full((rows,), top_p),
        torch.full((rows,), top_k),
        torch.full((rows,), min_p),
        words,
    )


def sweep(ops: Ops, line: Sequence[float], **filters: float) -> tuple[Counter[int], dict[int, float]]:
    """How often each token is drawn by evenly spaced words, and its processed log-probability."""
    count = SWEEP if ops is ONE_THREAD else 128  # the reference is slow
    words = (torch.arange(count) * (2**31 // count) + 2**31 // count // 2)[:, None]
    logits = torch.tensor(line, dtype=torch.float32).expand(count, len(line))
    ids, logprobs = run(ops, logits, words, **filters)  # type: ignore[arg-type]
    return Counter(ids.tolist()), dict(zip(ids.tolist(), logprobs.tolist(), strict=True))


def words_for(seed: int, purpose: int, positions: int) -> list[list[int]]:
    index = np.arange(positions, dtype=np.int64)
    drawn = random_words(np.full(positions, seed, np.uint64), index, purpose, np.zeros_like(index), 16)
    found: list[list[int]] = drawn.tolist()
    return found


def exact_kept(
    line: Sequence[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> list[int]:
    """Ids that survive; rejects examples that lie on an edge, where float32 may decide either way."""
    order = sorted(range(len(line)), key=lambda v: (-line[v], v))
    masses = [math.exp((line[v] - line[order[0]]) / temperature) for v in order]
    total, before, kept = sum(masses), 0.0, []
    for place, v in enumerate(order):
        assume(place == 0 or top_p == 1 or abs(before / total - top_p) > 1e-5)
        assume(min_p in (0, 1) or abs(masses[place] - min_p) > 1e-5)
        inside_p = top_p == 1 or before / total <= top_p
        if inside_p and (top_k == 0 or place < top_k) and masses[place] >= min_p:
            kept.append(v)
        before += masses[place]
    return kept


@given(
    line=st.lists(st.sampled_from([-2.0, -1.0, -0.5, -0.0, 0.0, 0.25, 1.0, 1.5]), min_size=1, max_size=12),
    temperature=st.sampled_from([0.5, 1.0, 2.5]),
    top_p=st.sampled_from([1e-6, 0.1, 0.35, 0.5, 0.77, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 5, 12, 2**40]),
    min_p=st.sampled_from([0.0, 0.1, 0.4, 0.7, 1.0]),
)
def test_filters_keep_what_an_exact_reference_keeps(
    line: list[float], temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    kept = exact_kept(line, temperature, top_p, top_k, min_p)
    counts, logprobs = sweep(ONE_THREAD, line, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    masses = {v: math.exp(line[v] / temperature) for v in kept}
    assert set(counts) == set(kept)
    for v, mass in masses.items():
        chance = mass / sum(masses.values())
        assert abs(counts[v] - chance * SWEEP) <= 2  # evenly spaced words miss an interval by one at each end
        assert abs(logprobs[v] - math.log(chance)) < 2e-6


@KERNEL_SETS
def test_ties_at_a_cut_go_to_the_lower_id(ops: Ops) -> None:
    flat = [1.0, 0.0, 1.0, 1.0, -0.0, 1.0, 0.0, 1.0]
    assert set(sweep(ops, flat, top_k=3)[0]) == {0, 2, 3}
    assert set(sweep(ops, flat, top_k=6)[0]) == {0, 1, 2, 3, 5, 7}
    assert set(sweep(ops, flat, top_k=7)[0]) == {0, 1, 2, 3, 4, 5, 7}
    assert set(sweep(ops, flat, min_p=1.0)[0]) == {0, 2, 3, 5, 7}
    # Four equal chances: exactly one half stands before the third token, which is therefore kept.
    assert set(sweep(ops, [0.0] * 4, top_p=0.5)[0]) == {0, 1, 2}
    assert set(sweep(ops, [0.0] * 4, top_p=0.5 - 2**-25)[0]) == {0, 1}
    assert set(sweep(ops, [0.0] * 4, top_p=1e-9)[0]) == {0}


@KERNEL_SETS
def test_filters_that_are_off_change_nothing(ops: Ops) -> None:
    generator = torch.Generator().manual_seed(5)
    logits, words = torch.randn(64, 300, generator=generator), torch.tensor(words_for(9, 0, 64))
    plain = run(ops, logits, words)
    for top_k in (300, 301, 2**40):
        other = run(ops, logits, words, top_p=1.0, top_k=top_k, min_p=0.0)
        assert torch.equal(plain[0], other[0])
        assert torch.equal(plain[1], other[1])


@KERNEL_SETS
def test_every_filter_looks_at_the_full_distribution(ops: Ops) -> None:
    # Chances 0.4 0.3 0.2 0.1. Top-p 0.5 after top-k 2 would see 4/7 and keep one token; here it keeps two.
    line = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert set(sweep(ops, line, top_k=2, top_p=0.5)[0]) == {0, 1}
    assert set(sweep(ops, line, min_p=0.6, top_p=0.5)[0]) == {0, 1}


@KERNEL_SETS
def test_banned_tokens_are_never_drawn(ops: Ops) -> None:
    line = [-math.inf, 0.0, -math.inf, 0.0, -math.inf]
    for filters in ({}, {"top_k": 4}, {"top_p": 0.999}, {"min_p": 0.01}, {"temperature": 100.0}):
        counts, _ = sweep(ops, line, **filters)
        assert set(counts) == {1, 3}
        assert counts[1] == counts[3]


@KERNEL_SETS
def test_greedy_takes_the_lowest_of_the_largest_without_words(ops: Ops) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [-1.0, -0.0, 0.0], [3.0, -math.inf, 1.0], [-5.0, -5.0, -4.0]])
    for word in (0, 2**32 - 1):
        ids, logprobs = run(ops, logits, torch.full((4, 16), word), temperature=0.0, top_k=1, min_p=0.9)
        assert ids.tolist() == [1, 1, 0, 2]
        assert logprobs.tolist() == [0.0] * 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@KERNEL_SETS
def test_a_row_that_is_not_finite_has_no_token(ops: Ops, temperature: float, bad: float) -> None:
    logits = torch.zeros(3, 40)
    logits[1, 17] = bad
    logits[2] = -math.inf
    ids, _ = run(ops, logits, torch.zeros(3, 16, dtype=torch.int64), temperature=temperature)
    assert ids.tolist() == [0, -1, -1]


@pytest.mark.parametrize("temperature", [1e-40, 1e-5, 1e38])
def test_extreme_temperatures_are_ordinary(temperature: float) -> None:
    counts, logprobs = sweep(ONE_THREAD, [1.0, 2.0, 2.0, -3.0], temperature=temperature)
    assert set(counts) == ({1, 2} if temperature < 1 else {0, 1, 2, 3})
    assert all(abs(value + math.log(len(counts))) < 1e-6 for value in logprobs.values())


def test_unfiltered_log_probabilities_are_the_bits_of_log_softmax() -> None:
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(8)) * 3
    ids, logprobs = run(ONE_THREAD, logits, torch.tensor(words_for(1, 0, 50)))
    assert torch.equal(logprobs, ONE_THREAD.token_logprobs(logits, ids)[0])


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 129, 1000, 4096, 8192, 10000])
def test_tokens_agree_with_the_reference(vocabulary: int) -> None:
    logits = torch.randn(12, vocabulary, generator=torch.Generator().manual_seed(3)) * 2
    words = torch.tensor(words_for(77, 0, 12)) % (2**31 - 2**20)  # no word that rounding may reject
    for filters in ({}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05, "top_p": 0.95, "temperature": 0.7}):
        got, want = run(ONE_THREAD, logits, words, **filters), run(REFERENCE, logits, words, **filters)
        assert torch.equal(got[0], want[0])
        assert (got[1] - want[1]).abs().max() < 4e-6


def test_draws_follow_the_distribution() -> None:
    """Chi-square with 7 degrees of freedom; 24.3 is its 99.9 percent point, and the words are fixed."""
    chances = np.array([1, 2, 3, 4, 5, 6, 7, 8]) / 36
    logits = torch.from_numpy(np.log(chances).astype(np.float32)).expand(20000, 8)
    ids, _ = run(ONE_THREAD, logits, torch.tensor(words_for(4242, 0, 20000)))
    counts = np.bincount(ids.numpy(), minlength=8)
    assert ((counts - 20000 * chances) ** 2 / (20000 * chances)).sum() < 24.3
