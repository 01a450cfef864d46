"""Does the number of CPU threads change the answer."""

from __future__ import annotations

from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext, full_requests
from deepinfer.verify.result import CheckResult
from deepinfer.verify.tally import Tally

NAME = "threads"


def run(context: CheckContext) -> CheckResult:
    """Score the shared samples with one thread and with two."""
    tally = Tally(NAME)
    requests = full_requests(context.base_samples)
    one = context.varied(num_threads=1).score(requests)
    two = context.varied(num_threads=2).score(requests)
    for sample, left, right in zip(context.base_samples, one, two, strict=True):
        tally.scores(f"{sample.sample_id} on 1 thread against 2", left, right)
    return tally.result("1 thread = 2 threads")


CHECK = Check(name=NAME, about="scores on 1 thread = scores on 2 threads", run=run)
