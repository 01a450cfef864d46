"""The budget op against counting by hand; equality of the device kernel is in ``strict_cases``."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from deepinfer.kernels.dispatch import select_ops
from deepinfer.kernels.interface import Ops


@pytest.fixture(scope="module", params=["cpu", "reference"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return select_ops(request.param, bf16=False, num_threads=1)


def by_hand(confidences: torch.Tensor, caps: torch.Tensor, total: int) -> list[int]:
    """Take entries one by one, the most likely first."""
    entries = []
    for i, line in enumerate(confidences.numpy()):
        survival = np.float32(1.0)
        for j, confidence in enumerate(line[: int(caps[i])]):
            sound = confidence if confidence > 0 else np.float32(0)
            survival = survival * min(sound, np.float32(1.0))
            entries.append((-survival, i, j))
    taken = [i for _, i, _ in sorted(entries)[:total]]
    return [taken.count(i) for i in range(len(caps))]


def test_the_example_of_the_engine_document(ops: Ops) -> None:
    """engine.md section 6.4; its totals count one row a sequence besides."""
    confidences = torch.tensor([[0.9, 0.8, 0.5, 0.3], [0.6, 0.5, 0.4, 0.2], [0.95, 0.95, 0.9, 0.9]])
    for total, rows in ((6, [2, 1, 3]), (8, [2, 1, 5]), (11, [4, 2, 5])):
        counts = ops.verify_budget(confidences, torch.full((3,), 4), total - 3)
        assert (counts + 1).tolist() == rows


def test_random_budgets(ops: Ops) -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        rows, size = int(draw.integers(1, 9)), int(draw.integers(1, 6))
        grid = draw.integers(0, 4, (rows, size)).astype(np.float32) / 3  # ties, zeros and ones
        grid[draw.random((rows, size)) < 0.1] = np.nan
        caps = draw.integers(0, size + 1, rows)
        total = int(draw.integers(0, rows * size + 3))
        confidences, limits = torch.from_numpy(grid), torch.from_numpy(caps)
        counts = ops.verify_budget(confidences, limits, total)
        assert counts.dtype == torch.int64
        assert counts.tolist() == by_hand(confidences, limits, total)
        assert counts.sum() == min(total, caps.sum())


def test_ties_go_to_the_lower_index(ops: Ops) -> None:
    even = torch.ones(3, 2)
    shares = [ops.verify_budget(even, torch.full((3,), 2), total).tolist() for total in range(7)]
    assert shares == [[0, 0, 0], [1, 0, 0], [2, 0, 0], [2, 1, 0], [2, 2, 0], [2, 2, 1], [2, 2, 2]]


def test_products_are_taken_from_the_left_in_float32(ops: Ops) -> None:
    """Two blocks whose exact products are equal and whose rounded ones are not; a sum of logs would tie."""
    parts = np.array([0.7, 0.9, 0.3], np.float32)
    lines = [np.array(order, np.float32) for order in itertools.permutations(parts)]
    ends = [np.multiply.accumulate(line)[-1] for line in lines]
    low, high = int(np.argmin(ends)), int(np.argmax(ends))
    assert ends[low] < ends[high]
    pair = torch.from_numpy(np.stack([lines[low], lines[high]]))
    assert ops.verify_budget(pair, torch.full((2,), 3), 5).tolist() == [2, 3]


def test_a_single_sequence_gets_its_first_drafts_whatever_they_promise(ops: Ops) -> None:
    """``ConfidenceDrafts.shares`` does not ask for one sequence."""
    generator = np.random.default_rng(3)
    lines = [*generator.random((20, 5)), [0.0] * 5, [1.0] * 5, [np.nan, 0.5, np.inf, -1.0, 2.0]]
    for line, cap, total in itertools.product(lines, range(6), range(6)):
        asked = torch.tensor(np.array(line)[None], dtype=torch.float32)
        shares = ops.verify_budget(asked, torch.tensor([cap]), total)
        assert shares.tolist() == [min(total, cap)]
