"""Compares the answers of a case byte by byte; one logits row of both sides is one comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepinfer.verify.case import Answer, Case, Need
from deepinfer.verify.compare import AnyArray, Comparison, bits, compare_arrays

_NOTHING: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = np.zeros(0, np.int64)
NOTHING_EQUAL = Comparison(num_compared=0, num_differing=0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What comparing the two sides of a case gave.

    Attributes:
        case: the case.
        num_rows: logits rows compared.
        positions: int64 [R], position that each compared row predicts.
        differing: int64, indices of the compared rows that differ.
        array: first array that differs, or empty.
        comparison: its bytes.
        position: position of the first difference, if the array goes by position.
        num_arrays: arrays compared besides the logits.
        num_different: arrays that differ.
        blocked: why the case could not be decided, else None.
        non_finite: where a value is not finite, else None.
    """

    case: Case
    num_rows: int = 0
    positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    differing: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    array: str = ""
    comparison: Comparison = NOTHING_EQUAL
    position: int | None = None
    num_arrays: int = 0
    num_different: int = 0
    blocked: str | None = None
    non_finite: str | None = None

    @property
    def differs(self) -> bool:
        """Whether a byte differs."""
        return self.num_different > 0


def judge(case: Case, left: Answer, right: Answer) -> Outcome:
    """Compare the answers of the two sides of ``case``."""
    if left.failure is not None and right.failure is not None:
        return _undecided(case, f"{case.name}: {left.failure}")
    if left.failure is not None or right.failure is not None:
        return _mismatch(case, "result", f"one side was refused: {left.failure or right.failure}")
    blocked = lacking(case, right)
    if blocked is not None:
        return _undecided(case, blocked)
    shared = shared_rows(left, right, exactly=case.left.ask is case.right.ask)
    if isinstance(shared, str):
        return _mismatch(case, "positions", shared)
    here, there = shared
    compared = _arrays(left, right, here, there)
    different = [(name, found, place) for name, found, place in compared if not found.equal]
    name, comparison, position = different[0] if different else ("", NOTHING_EQUAL, None)
    rows = bits(left.logits[here]) != bits(right.logits[there]) if len(here) else np.zeros((0, 1), np.bool_)
    return Outcome(
        case=case,
        num_rows=len(here),
        positions=left.positions[here],
        differing=np.flatnonzero(rows.any(axis=1)),
        array=name,
        comparison=comparison,
        position=position,
        num_arrays=len(compared) - (len(here) > 0),
        num_different=len(different),
        non_finite=_non_finite(case, left, right),
        blocked=None if compared else f"{case.name}: the two sides share nothing that could be compared",
    )


def shared_rows(left: Answer, right: Answer, *, exactly: bool) -> tuple[AnyArray, AnyArray] | str:
    """Indices of the rows of both sides that predict the same position; why not, if they must all agree."""
    if np.array_equal(left.positions, right.positions):
        every = np.arange(len(left.positions))
        return every, every
    if exactly:
        return f"{len(left.positions)} rows against {len(right.positions)}, or at other positions"
    _, here, there = np.intersect1d(left.positions, right.positions, return_indices=True)
    return here, there


def _arrays(
    left: Answer, right: Answer, here: AnyArray, there: AnyArray
) -> list[tuple[str, Comparison, int | None]]:
    """Every array that both sides have: its name, the bytes, and the position of the first difference."""
    found: list[tuple[str, Comparison, int | None]] = []
    if len(here):
        found.append(_by_position("logits", left, left.logits[here], right.logits[there], here))
    for name in left.by_position.keys() & right.by_position.keys():
        one, other = left.by_position[name][here], right.by_position[name][there]
        found.append(_by_position(name, left, one, other, here))
    if left.whole.keys() != right.whole.keys():
        lone = sorted(left.whole.keys() ^ right.whole.keys())
        reason = f"{', '.join(lone[:3])} on one side only"
        found.append((lone[0], Comparison(num_compared=0, num_differing=0, mismatch=reason), None))
    for name in sorted(left.whole.keys() & right.whole.keys()):
        found.append((name, compare_arrays(left.whole[name], right.whole[name]), None))
    return found


def _by_position(
    name: str, left: Answer, one: AnyArray, other: AnyArray, here: AnyArray
) -> tuple[str, Comparison, int | None]:
    comparison = compare_arrays(one, other)
    if comparison.first is None:
        return name, comparison, None
    return name, comparison, int(left.positions[here[comparison.first.coordinates[0]]])


def lacking(case: Case, right: Answer) -> str | None:
    """Why the right side did not go through what the case needs, None if it did."""
    if case.need is Need.HIT and right.num_hit_tokens == 0:
        return f"{case.name}: no prefix was reused, so nothing was put to the test"
    if case.need is Need.PREEMPTION and right.num_preemptions == 0:
        return f"{case.name}: nothing was preempted, so nothing was put to the test"
    if case.need is Need.DRAFTS and right.num_accepted == 0:
        return f"{case.name}: no draft was accepted, so nothing was put to the test"
    if case.need is Need.AHEAD and right.num_ahead == 0:
        return f"{case.name}: no step was planned while another ran, so nothing was put to the test"
    return None


def _non_finite(case: Case, *sides: Answer) -> str | None:
    for side in sides:
        bad = ~np.isfinite(side.logits).all(axis=1) if side.logits.size else np.zeros(0, np.bool_)
        if bad.any():
            return f"{case.name}: logits for position {int(side.positions[int(np.argmax(bad))])}"
    return None


def _undecided(case: Case, reason: str) -> Outcome:
    return Outcome(case=case, positions=_NOTHING, differing=_NOTHING, blocked=reason)


def _mismatch(case: Case, array: str, reason: str) -> Outcome:
    comparison = Comparison(num_compared=0, num_differing=0, mismatch=reason)
    return Outcome(
        case=case,
        positions=_NOTHING,
        differing=_NOTHING,
        array=array,
        comparison=comparison,
        num_different=1,
    )
