"""Are all values finite: before anything else, since NaN and infinity make every other answer meaningless."""

from __future__ import annotations

from deepinfer.engine.api import RequestFailure
from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.tally import first_non_finite, num_logits_rows

NAME = "nonfinite"


def run(context: CheckContext) -> CheckResult:
    """Look at every log-probability and logits row of one sample of each workload."""
    num_rows = 0
    for result in context.base_results:
        if isinstance(result, RequestFailure):
            detail = f"{result.request_id} was refused: {result.reason}"
            return CheckResult(name=NAME, status=Status.SKIPPED, detail=detail)
        place = first_non_finite(result)
        if place is not None:
            detail = f"not finite: {place}; no comparison would mean anything"
            return CheckResult(name=NAME, status=Status.INCONCLUSIVE, detail=detail, num_inspected=num_rows)
        num_rows += num_logits_rows(result)
    detail = f"{num_rows} logits rows of {len(context.base_results)} documents are finite"
    return CheckResult(name=NAME, status=Status.SAME, detail=detail, num_inspected=num_rows)


CHECK = Check(
    name=NAME, about="every log-probability and logit of a sample of each workload is finite", run=run
)
