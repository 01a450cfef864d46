"""Two tables of the same tokens, side by side: which bits differ, and by how much on the mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepinfer.engine.api import BoolArray
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.stats import ClusteredMean, clustered_mean, exact_sum
from deepinfer.eval.ulp import ulp_distance, ulp_histogram

_COMPARED_COLUMNS = ("valid", "logprob", "rank", "window_id", "top_ids", "top_logprobs")


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The first token, in the order of samples and positions, that is not the same in both runs.

    Attributes:
        sample_id: its sample.
        position: its position.
        token_id: the token.
        column: the first column in which the rows differ, of ``valid``, ``logprob``, ``rank``, ``window_id``,
            ``top_ids`` and ``top_logprobs``.
        values: in run A and run B.
        bits: of the two log-probabilities, as unsigned integers; None for other columns.
        ulp: distance of the two log-probabilities in float32 steps, -1 beside a NaN; None for other columns.
    """

    sample_id: str
    position: int
    token_id: int
    column: str
    values: tuple[float, float]
    bits: tuple[int, int] | None
    ulp: int | None


@dataclass(frozen=True, kw_only=True)
class PolicyComparison:
    """Everything about one window policy.

    Attributes:
        policy: its label.
        num_tokens: tokens scored in both runs.
        num_one_sided: tokens scored in one run only, as happens between prefill modes.
        num_different: rows whose bits differ in any column.
        num_non_finite: tokens scored in both whose log-probability is NaN or infinite in either.
        first: the first difference; None when there is none.
        ulp_counts: tokens by the distance of their log-probabilities; equal bits are left out.
        delta: nats per token, B minus A (positive: B is worse), over tokens scored in both, clustered by
            document; None when there are none or one is not finite.
    """

    policy: str
    num_tokens: int
    num_one_sided: int
    num_different: int
    num_non_finite: int
    first: FirstDifference | None
    ulp_counts: dict[str, int]
    delta: ClusteredMean | None


def compare_tables(policy: str, pairs: Sequence[tuple[SampleRows, SampleRows]]) -> PolicyComparison:
    """Compare the tables of one policy, sample by sample; both sides must hold the same token ids."""
    first: FirstDifference | None = None
    num_different = num_one_sided = 0
    sums: list[float] = []
    counts: list[int] = []
    distances = []
    num_non_finite = 0
    for left, right in pairs:
        changed = rows_that_differ(left, right)
        num_different += int(changed.sum())
        if first is None and changed.any():
            first = _describe(left, right, int(np.flatnonzero(changed)[0]))
        both = left.valid & right.valid
        num_one_sided += int((left.valid ^ right.valid).sum())
        left_scored, right_scored = left.logprob[both], right.logprob[both]
        distances.append(ulp_distance(left_scored, right_scored))
        num_non_finite += int((~np.isfinite(left_scored) | ~np.isfinite(right_scored)).sum())
        counts.append(int(both.sum()))
        if not num_non_finite:
            sums.append(exact_sum(left_scored.astype(np.float64) - right_scored.astype(np.float64)))
    return PolicyComparison(
        policy=policy,
        num_tokens=sum(counts),
        num_one_sided=num_one_sided,
        num_different=num_different,
        num_non_finite=num_non_finite,
        first=first,
        ulp_counts=ulp_histogram(np.concatenate(distances)) if distances else {},
        delta=None if num_non_finite else clustered_mean(sums, counts),
    )


def rows_that_differ(left: SampleRows, right: SampleRows) -> BoolArray:
    """[S] bool, positions where some column differs in its bits; NaN equals NaN of the same bits.

    Most likely tokens are compared where both runs stored equally many.
    """
    changed = np.zeros(len(left), dtype=np.bool_)
    for _, left_bits, right_bits in _columns_as_bits(left, right):
        unequal = left_bits != right_bits
        changed |= unequal.any(axis=1) if unequal.ndim == 2 else unequal
    return changed


def _columns_as_bits(left: SampleRows, right: SampleRows) -> Iterator[tuple[str, Any, Any]]:
    for name in _COMPARED_COLUMNS:
        sides = getattr(left, name), getattr(right, name)
        if sides[0] is None or sides[1] is None or sides[0].shape != sides[1].shape:
            continue
        if sides[0].dtype == np.float32:
            sides = sides[0].view(np.uint32), sides[1].view(np.uint32)
        yield name, *sides


def _describe(left: SampleRows, right: SampleRows, position: int) -> FirstDifference:
    column = next(
        name
        for name, left_bits, right_bits in _columns_as_bits(left, right)
        if np.any(left_bits[position] != right_bits[position])
    )
    here = slice(position, position + 1)
    return FirstDifference(
        sample_id=left.sample_id,
        position=position,
        token_id=int(left.token_id[position]),
        column=column,
        values=(_first_value(left, column, position), _first_value(right, column, position)),
        bits=(
            (int(left.logprob_bits[position]), int(right.logprob_bits[position]))
            if column == "logprob"
            else None
        ),
        ulp=int(ulp_distance(left.logprob[here], right.logprob[here])[0]) if column == "logprob" else None,
    )


def _first_value(rows: SampleRows, column: str, position: int) -> float:
    """The value of a column at a position; of a list of most likely tokens its first."""
    value: float = getattr(rows, column)[position].reshape(-1)[0].item()
    return value
