"""Runs planned samples through a scorer into a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deepinfer.engine.api import RequestFailure, ScoreRequest, ScoreResult
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.plan import SamplePlan, assemble_rows
from deepinfer.eval.records import RunWriter
from deepinfer.eval.shard_file import SampleOutcome

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, tokens done, tokens in total)``."""

ResultObserver = Callable[[SamplePlan, ScoreResult], None]
"""Sees every result while its arrays are at hand, for what does not go into rows."""


def ignore_progress(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


def run_plans(
    scorer: Scorer,
    plans: Sequence[SamplePlan],
    writer: RunWriter,
    progress: Progress = ignore_progress,
    observe: ResultObserver | None = None,
) -> None:
    """Score the samples ``writer`` does not hold yet; with an observer, run all and store what is missing.

    The engine sees one stream of requests and may batch as it likes. A sample with a failing request is
    stored as failed, with the first reason; its neighbours are unharmed.
    """
    todo = [plan for plan in plans if observe or plan.sample_id not in writer.outcomes]
    total = sum(len(request.token_ids) for plan in plans for request in plan.requests)
    done = total - sum(len(request.token_ids) for plan in todo for request in plan.requests)
    outcomes = scorer.score_iter(_requests_of(todo))
    for plan in todo:
        progress(plan.sample_id, done, total)
        results: dict[str, ScoreResult] = {}
        failure: str | None = None
        for request in plan.requests:
            outcome = next(outcomes, None)
            assert outcome is not None, "engines answer every request"
            assert outcome.request_id == request.request_id, "and in their order"
            if isinstance(outcome, RequestFailure):
                failure = failure or outcome.reason
            else:
                results[request.request_id] = outcome
                if observe:
                    observe(plan, outcome)
            done += len(request.token_ids)
            progress(plan.sample_id, done, total)
        if plan.sample_id not in writer.outcomes:
            rows = () if failure else tuple(assemble_rows(plan, results))
            writer.add(SampleOutcome(sample_id=plan.sample_id, rows=rows, failure=failure))


def _requests_of(plans: Sequence[SamplePlan]) -> Iterator[ScoreRequest]:
    for plan in plans:
        yield from plan.requests


def describe_scorer(scorer: Scorer) -> dict[str, Any]:
    """The part of a run's configuration that the engine decides.

    Threads and batch size are left out: they move no bit.
    """
    config = scorer.config
    return {
        "engine": scorer.name,
        "checkpoint": scorer.checkpoint_digest,
        "backend": config.backend,
        "profile": config.profile.value,
        "cache_format": config.cache_format.value,
        "prefill": config.prefill.value,
        "keep": scorer.keep,
    }
