"""Takes a failing case apart: makes it smaller, runs both sides with digests, and names where they part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from deepinfer.engine.errors import ConfigError
from deepinfer.engine.op_trace import Tracer
from deepinfer.engine.traced_model import traced
from deepinfer.verify.case import Answer, Ask, Case, Need, Place, Trial
from deepinfer.verify.context import CheckContext
from deepinfer.verify.engine_subject import EngineSubject
from deepinfer.verify.explain import Explanation, explain
from deepinfer.verify.locate import Location, Trace, first_difference, trace_of
from deepinfer.verify.outcome import judge, lacking
from deepinfer.verify.shrink import Shrunk, shrink
from deepinfer.verify.trial_run import answer, follow

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """What taking a case apart found.

    Attributes:
        case: the case as given.
        differs: whether its sides differ at all.
        shrunk: the smaller case, None if nothing differs or shrinking was not asked for.
        explanation: of the smallest failing case.
        location: where its sides part, None if every digest agrees.
        blocked: why the case could not be decided, else None.
    """

    case: Case
    differs: bool
    shrunk: Shrunk | None = None
    explanation: Explanation | None = None
    location: Location | None = None
    blocked: str | None = None

    @property
    def smallest(self) -> Case:
        """The smallest case that is known to fail; the one given if none was found."""
        return self.shrunk.case if self.shrunk else self.case

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "case_id": self.case.case_id,
            "differs": self.differs,
            "blocked": self.blocked,
            "location": self.location.to_dict() if self.location else None,
            "explanation": self.explanation.to_dict() if self.explanation else None,
            "shrunk": None
            if self.shrunk is None
            else {
                "case": self.shrunk.case.to_dict(),
                "num_runs": self.shrunk.num_runs,
                "is_minimal": self.shrunk.is_minimal,
            },
        }


def bisect(
    context: CheckContext, case: Case, *, shrinking: bool = True, say: Say = lambda what: None
) -> Bisection:
    """Take ``case`` apart.

    Raises:
        DeepInferError: a side could not run.
    """
    say(f"running both sides of {case.case_id}")
    outcome = judge(case, *context.trials.both(case))
    if not outcome.differs:
        return Bisection(case=case, differs=False, blocked=outcome.blocked)
    shrunk, smallest = None, case
    if shrinking:

        def fails(smaller: Case) -> bool:
            say(f"shrinking: {smaller.describe()}")
            return _fails(context, smaller)

        shrunk = shrink(case, fails)
        smallest = shrunk.case
    left, right = context.trials.both(smallest)
    outcome = judge(smallest, left, right)
    if shrunk is not None and not outcome.differs:
        # not the same on every run: what seemed to be enough to make it fail may have been luck
        shrunk, smallest = None, case
        left, right = context.trials.both(smallest)
        outcome = judge(smallest, left, right)
    say("tracing every op of both sides")
    return Bisection(
        case=case,
        differs=True,
        shrunk=shrunk,
        explanation=explain(outcome, left, right, window=context.model.sliding_window),
        location=locate(context, smallest),
    )


def _fails(context: CheckContext, case: Case) -> bool:
    """Whether both sides answer and differ; a case that no engine takes is no smaller failure."""
    try:
        if case.need is not Need.NOTHING and lacking(case, context.trials.run(case.right)):
            return False  # found out before the other side has run
        left, right = context.trials.both(case)
    except Exception:  # an engine that breaks down fails in another way than the one that is taken apart
        return False
    if left.failure is not None or right.failure is not None:
        return False
    outcome = judge(case, left, right)
    return outcome.differs and outcome.blocked is None


def locate(context: CheckContext, case: Case) -> Location | None:
    """Where the two sides of ``case`` part; chains of ops are opened first, then run as the engine does."""
    for open_chains in (True, False):
        left_answer, left = traced_run(context, case.left, open_chains=open_chains)
        _, right = traced_run(context, follow(case.right, left_answer), open_chains=open_chains)
        found = first_difference(left, right)
        if found is not None:
            return found
    return None


def traced_run(context: CheckContext, trial: Trial, *, open_chains: bool = True) -> tuple[Answer, Trace]:
    """A side's answer and its digests; one that ran elsewhere is traced here.

    Raises:
        ConfigError: the engine under test cannot be traced.
    """
    subject = context.open_for(replace(trial, place=Place.REOPENED))
    if not isinstance(subject, EngineSubject):
        raise ConfigError("only the engine of this package can be traced op by op")
    tracer = Tracer(trial.tokens)
    given = answer(subject.wrapped(traced(tracer, open_chains=open_chains)), trial)
    generated = given.token_ids.tolist() if trial.ask is Ask.GENERATE and given.failure is None else []
    return given, trace_of(tracer, [*trial.tokens, *generated])


def find_case(context: CheckContext, case_id: str) -> Case:
    """The case of that name in this context's size.

    Raises:
        ConfigError: there is none.
    """
    from deepinfer.verify.runner import CHECKS
    from deepinfer.verify.scenarios import SCENARIOS

    name, _, rest = case_id.partition("/")
    every = [*CHECKS, *(scenario.as_check() for scenario in SCENARIOS)]
    known = [check for check in every if check.cases is not None]
    for check in known:
        if check.name == name and check.cases is not None:
            names = []
            for case in check.cases(context):
                if case.name == rest:
                    return case
                names.append(case.name)
            raise ConfigError(
                f"check {name} has no case {rest!r} in size {context.size}; it has {', '.join(names)}"
            )
    raise ConfigError(f"no check {name!r} made of cases; there are {', '.join(c.name for c in known)}")
