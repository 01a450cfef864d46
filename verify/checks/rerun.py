"""The control of every other check: the same question twice, to the same engine and to one opened afresh."""

from __future__ import annotations

from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext, full_requests
from deepinfer.verify.result import CheckResult
from deepinfer.verify.tally import Tally

NAME = "rerun"


def run(context: CheckContext) -> CheckResult:
    """Score the shared samples again, and again after opening the engine a second time."""
    tally = Tally(NAME)
    requests = full_requests(context.base_samples)
    first_results = context.base_results
    again = context.base.score(requests)
    afresh = context.reopened().score(requests)
    for sample, first, second, third in zip(context.base_samples, first_results, again, afresh, strict=True):
        tally.scores(f"{sample.sample_id} against a second run", first, second)
        tally.scores(f"{sample.sample_id} against an engine opened afresh", first, third)
    return tally.result("a second run and an engine opened afresh give the same bytes")


CHECK = Check(
    name=NAME, about="the same batch twice, and by an engine opened afresh, gives equal bytes", run=run
)
