"""A check made of cases: each is run on both sides, compared, and the first that differs is explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deepinfer.verify.case import Answer, Case, Place, Trial
from deepinfer.verify.check import Check, Tier
from deepinfer.verify.context import CheckContext
from deepinfer.verify.explain import explain
from deepinfer.verify.outcome import judge
from deepinfer.verify.result import CheckResult, Failure, Status
from deepinfer.verify.tally import Tally

MakeCases = Callable[[CheckContext], Iterator[Case]]
MAX_FAILURES = 3
"""Failing cases after which a check stops looking: what follows costs time and tells nothing new."""


def case_check(
    name: str,
    about: str,
    cases: MakeCases,
    found: str,
    *,
    tier: Tier | None = None,
    absent: Callable[[CheckContext], str | None] = lambda context: None,
) -> Check:
    """A check that runs ``cases``.

    Args:
        name: what the user types.
        about: see ``Check``.
        cases: makes the cases, the same ones on every run.
        found: what a green result says, as an equation.
        tier: see ``Check``.
        absent: why this configuration cannot have the clause, None if it can.
    """

    def run(context: CheckContext) -> CheckResult:
        reason = absent(context)
        if reason is not None:
            return CheckResult(name=name, status=Status.NOT_APPLICABLE, detail=reason)
        tally = Tally(name)
        run_cases(context, tally, cases(context))
        return tally.result(f"{found} in {tally.num_cases} cases")

    return Check(name=name, about=about, run=run, tier=tier, cases=cases)


def run_cases(context: CheckContext, tally: Tally, cases: Iterator[Case]) -> None:
    """Run cases one after the other; left sides that are the same trial run once."""
    last: tuple[Trial, Answer] | None = None
    num_failures = 0
    for case in cases:
        context.progress(f"{tally.name}: {case.name}")
        if last is None or last[0] != case.left or case.left.place is not Place.HERE:
            last = case.left, context.trials.run(case.left)
        left = last[1]
        right = context.trials.right(case, left)
        outcome = judge(case, left, right)
        if outcome.differs:
            num_failures += 1
            if tally.failure is None:
                tally.failure = Failure(
                    case=case,
                    explanation=explain(
                        outcome,
                        left,
                        right,
                        window=context.model.sliding_window,
                        options=context.options,
                    ),
                )
        tally.outcome(outcome)
        if num_failures >= MAX_FAILURES:
            return
