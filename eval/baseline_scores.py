"""Scores samples for baselines: one engine, one stream of requests, each sample handed on as soon as it is
done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deepinfer.baselines.canonical import Sample, as_sample
from deepinfer.baselines.key import Key
from deepinfer.engine.api import RequestFailure, ScoreResult
from deepinfer.engine.errors import InputError
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.plan import assemble_rows, plan_sample
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.runner import Progress, ignore_progress
from deepinfer.eval.scoring_plan import PlannedSample


def score_samples(
    scorer: Scorer, planned: Sequence[PlannedSample], progress: Progress = ignore_progress
) -> Iterator[tuple[Key, SampleRows]]:
    """Rows of every planned sample, in order.

    Raises:
        InputError: the engine refuses a sample; there is no baseline of a failure.
    """
    plans = [
        plan_sample(str(index), item.token_ids, (item.policy,), scorer.bos_token_id)
        for index, item in enumerate(planned)
    ]
    total = sum(len(request.token_ids) for plan in plans for request in plan.requests)
    outcomes = scorer.score_iter(request for plan in plans for request in plan.requests)
    done = 0
    for item, plan in zip(planned, plans, strict=True):
        progress(item.key.scope.workload_name, done, total)
        results: dict[str, ScoreResult] = {}
        for request in plan.requests:
            outcome = next(outcomes)
            if isinstance(outcome, RequestFailure):
                raise InputError(f"sample {item.key.sample!r}: the engine refused it ({outcome.reason})")
            results[request.request_id] = outcome
            done += len(request.token_ids)
        [rows] = assemble_rows(plan, results)
        yield item.key, rows
    progress("scored", total, total)


def lockable(scores: Iterator[tuple[Key, SampleRows]]) -> Iterator[tuple[Key, Sample]]:
    """The arrays that are locked.

    Raises:
        NonFiniteLogprobError: a scored value is NaN or infinite.
    """
    for key, rows in scores:
        yield key, as_sample(rows.token_id, rows.logprob, rows.valid)
