"""Counts comparisons of one check, keeps the first difference, and turns both into the check's result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from deepinfer.engine.api import RequestFailure, ScoreResult
from deepinfer.engine.draft_request import DraftResult
from deepinfer.verify.compare import AnyArray, Comparison, compare_arrays
from deepinfer.verify.outcome import Outcome
from deepinfer.verify.result import Cell, CheckResult, Failure, LocatedDifference, Status

BY_POSITION = ("token_ids", "valid", "logprobs", "ranks", "logits")
SCORE_ARRAYS = (*BY_POSITION, "final_logits")
DRAFT_ARRAYS = ("anchors", "tokens", "base_logits", "logits", "confidence_logits", "confidences")


class Tally:
    """What one check has compared so far."""

    def __init__(self, name: str) -> None:
        """Start the count of the check called ``name``."""
        self.name = name
        self.num_comparisons = 0
        self.num_inspected = 0
        self.num_different = 0
        self.num_cases = 0
        self.cells: dict[str, Cell] = {}
        self.failure: Failure | None = None
        self.figures: dict[str, float] = {}
        self._first: LocatedDifference | None = None
        self._non_finite: str | None = None
        self._blocked: str | None = None

    def arrays(
        self, case: str, array: str, left: AnyArray, right: AnyArray, *, by_position: bool = False
    ) -> None:
        """Compare two arrays; with ``by_position`` the first axis is the absolute token position."""
        comparison = compare_arrays(left, right)
        position = comparison.first.coordinates[0] if by_position and comparison.first else None
        self._note(LocatedDifference(case=case, array=array, comparison=comparison, position=position))

    def outcome(self, outcome: Outcome) -> None:
        """Add what a case gave."""
        self.num_cases += 1
        self.num_comparisons += outcome.num_rows
        self.num_inspected += outcome.num_arrays
        before = self.cells.get(outcome.case.workload, Cell())
        self.cells[outcome.case.workload] = Cell(
            num_cases=before.num_cases + 1,
            num_rows=before.num_rows + outcome.num_rows,
            num_differing=before.num_differing + len(outcome.differing),
        )
        if outcome.differs:
            self.num_different += outcome.num_different - 1
            self._note(
                LocatedDifference(
                    case=f"{outcome.case.case_id} ({outcome.case.describe()})",
                    array=outcome.array,
                    comparison=outcome.comparison,
                    position=outcome.position,
                )
            )
        elif outcome.blocked is not None:
            self.block(outcome.blocked)
        self._expect_finite(outcome.case.case_id, outcome.non_finite)

    def mappings(self, case: str, left: Mapping[str, AnyArray], right: Mapping[str, AnyArray]) -> None:
        """Compare arrays by name; a name on one side only is a difference."""
        for name in sorted(left.keys() | right.keys()):
            if name not in left or name not in right:
                side = "right" if name not in left else "left"
                self.mismatch(case, name, f"exists on the {side} side only")
            else:
                self.num_inspected += 1
                self.arrays(case, name, left[name], right[name])

    def scores(
        self, case: str, left: ScoreResult | RequestFailure, right: ScoreResult | RequestFailure
    ) -> None:
        """Compare two results of one request as bytes; each logits row both sides hold is one comparison."""
        if isinstance(left, RequestFailure) or isinstance(right, RequestFailure):
            self._failed(case, left, right)
            return
        self._fields(case, SCORE_ARRAYS, left, right)
        self.num_comparisons += num_logits_rows(left)
        for side in (left, right):
            self._expect_finite(case, first_non_finite(side))

    def drafts(
        self, case: str, left: DraftResult | RequestFailure, right: DraftResult | RequestFailure
    ) -> None:
        """Compare two drafts of one request as bytes; each drafted position is one comparison."""
        if isinstance(left, RequestFailure) or isinstance(right, RequestFailure):
            self._failed(case, left, right)
            return
        self._fields(case, DRAFT_ARRAYS, left, right)
        self.num_comparisons += left.confidences.size
        if left.logits is not None and not np.isfinite(left.logits).all():
            self._expect_finite(case, f"draft logits of {left.request_id}")

    def mismatch(self, case: str, array: str, reason: str) -> None:
        """Note a difference that is not one of bytes."""
        comparison = Comparison(num_compared=0, num_differing=0, mismatch=reason)
        self._note(LocatedDifference(case=case, array=array, comparison=comparison))

    def block(self, reason: str) -> None:
        """Note that part of the check could not run."""
        self._blocked = self._blocked or reason

    def result(self, detail: str) -> CheckResult:
        """The check's result; a difference outweighs what could not be decided."""
        status = Status.SAME
        if self._first is not None:
            status = Status.DIFFERENT
            detail = describe(self._first, self.num_different)
        elif self._non_finite is not None:
            status, detail = Status.INCONCLUSIVE, f"not finite: {self._non_finite}"
        elif self._blocked is not None:
            status, detail = Status.SKIPPED, self._blocked
        elif self.num_comparisons + self.num_inspected == 0:
            status, detail = Status.SKIPPED, "nothing was compared"
        return CheckResult(
            name=self.name,
            status=status,
            detail=detail,
            num_comparisons=self.num_comparisons,
            num_inspected=self.num_inspected,
            difference=self._first,
            num_different=self.num_different,
            num_cases=self.num_cases,
            cells=dict(self.cells),
            failure=self.failure,
            figures=dict(self.figures),
        )

    def _fields(
        self,
        case: str,
        names: Sequence[str],
        left: ScoreResult | DraftResult,
        right: ScoreResult | DraftResult,
    ) -> None:
        for name in names:
            one, other = getattr(left, name), getattr(right, name)
            if one is None and other is None:
                continue
            if one is None or other is None:
                self.mismatch(case, name, "exists on one side only")
            else:
                self.arrays(case, name, one, other, by_position=name in BY_POSITION)

    def _expect_finite(self, case: str, place: str | None) -> None:
        if place is not None and self._non_finite is None:
            self._non_finite = f"{case}: {place}"

    def _note(self, found: LocatedDifference) -> None:
        if not found.comparison.equal:
            self.num_different += 1
            self._first = self._first or found

    def _failed(self, case: str, left: object, right: object) -> None:
        if isinstance(left, RequestFailure) and isinstance(right, RequestFailure):
            self.block(f"{case}: {left.reason}")
            return
        failure = left if isinstance(left, RequestFailure) else right
        assert isinstance(failure, RequestFailure)
        self.mismatch(case, "result", f"one side was refused: {failure.reason}")


def num_logits_rows(result: ScoreResult) -> int:
    """Full-vocabulary rows that a result holds."""
    if result.logits is None:
        return 0
    return int(np.count_nonzero(result.valid)) + (result.final_logits is not None)


def first_non_finite(result: ScoreResult) -> str | None:
    """Where a result that is marked valid first holds NaN or infinity, in words; None if nowhere."""
    rows = {"logprobs": result.logprobs, "logits": result.logits}
    for name, array in rows.items():
        if array is None:
            continue
        bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1) & result.valid
        if bad.any():
            return f"{name} of {result.request_id} at position {int(np.argmax(bad))}"
    if result.final_logits is not None and not np.isfinite(result.final_logits).all():
        return f"final logits of {result.request_id}"
    return None


def describe(found: LocatedDifference, num_different: int) -> str:
    """One line: where two sides first differ, both values as bits and as numbers, and how far apart."""
    comparison = found.comparison
    where = f"{found.case}: {found.array}"
    if comparison.first is None:
        return f"{where}: {comparison.mismatch}"
    first = comparison.first
    place = f"position {found.position}" if found.position is not None else f"index {first.flat_index}"
    ulp = "" if first.ulp is None else f", {first.ulp} ulp"
    more = "" if num_different == 1 else f"; {num_different} arrays differ"
    return (
        f"{where}{list(first.coordinates)} differs first at {place}: {first.left_hex} ({first.left}) against "
        f"{first.right_hex} ({first.right}){ulp}; {comparison.num_differing} of {comparison.num_compared} "
        f"elements, max |d| {comparison.max_abs_diff:.3g}{more}"
    )
