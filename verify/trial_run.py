"""Runs one side of a case on the engine under test and brings its answer into one shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from deepinfer.engine.api import (
    EngineConfig,
    Float32Array,
    GenerateRequest,
    RequestFailure,
    SamplingParams,
    ScoreRequest,
    ScoreResult,
)
from deepinfer.engine.draft_request import DraftRequest
from deepinfer.verify.case import Answer, Ask, Case, Place, Trial, refused
from deepinfer.verify.subject import Generated, Subject

Opened = Callable[[Trial], Subject]
"""Gives the engine of a trial; one that generates has caches of its own."""
RunElsewhere = Callable[[Trial, EngineConfig], Answer]
DRAFT_ARRAYS = ("tokens", "base_logits", "confidence_logits", "confidences")


class TrialRunner:
    """Runs trials of one configuration."""

    def __init__(self, base: EngineConfig, opened: Opened, run_elsewhere: RunElsewhere) -> None:
        """Trials change fields of ``base``."""
        self.base, self._opened, self._run_elsewhere = base, opened, run_elsewhere

    def run(self, trial: Trial) -> Answer:
        """The target's answer. ``Ask.RESCORE`` needs `both`."""
        if trial.place is Place.PROCESS:
            return self._run_elsewhere(trial, self.base)
        return answer(self._opened(trial), trial)

    def both(self, case: Case) -> tuple[Answer, Answer]:
        """Answers of both sides, each from an execution of its own."""
        left = self.run(case.left)
        return left, self.right(case, left)

    def right(self, case: Case, left: Answer) -> Answer:
        """The right side's answer; it may score what the left side generated."""
        return self.run(follow(case.right, left))


def follow(trial: Trial, left: Answer) -> Trial:
    """The trial as it runs once the left side's tokens are known."""
    if trial.ask is not Ask.RESCORE or left.failure is not None:
        return trial
    prompts = list(trial.prompts)
    # the last token was never read, so nothing would predict from it on the left side
    prompts[trial.target] = (*trial.tokens, *left.token_ids.tolist()[:-1])
    return replace(trial, ask=Ask.SCORE, prompts=tuple(prompts))


def answer(subject: Subject, trial: Trial) -> Answer:
    """Put the question of a trial to an engine."""
    if trial.ask is Ask.SCORE:
        return _score(subject, trial)
    if trial.ask is Ask.GENERATE:
        return _generate(subject, trial)
    if trial.ask is Ask.DRAFT:
        return _draft(subject, trial)
    if trial.ask is Ask.STATE:
        return replace(refused(""), failure=None, whole=dict(subject.prefill_state(trial.tokens)))
    return refused("nothing was generated that could be scored")


def _score(subject: Subject, trial: Trial) -> Answer:
    requests = [
        ScoreRequest(request_id=str(i), token_ids=ids, return_logits=i == trial.target)
        for i, ids in enumerate(trial.prompts)
    ]
    return score_answer(subject.score(requests)[trial.target])


def score_answer(result: ScoreResult | RequestFailure) -> Answer:
    """A scored sequence: the rows that are valid, and the row after the last token."""
    if isinstance(result, RequestFailure):
        return refused(result.reason)
    assert result.logits is not None
    assert result.final_logits is not None
    scored = np.flatnonzero(result.valid)
    rows = np.concatenate([result.logits[scored], result.final_logits[None]])
    return Answer(
        token_ids=result.token_ids,
        positions=np.append(scored, len(result.token_ids)).astype(np.int64),
        logits=rows,
        by_position={
            "logprobs": np.append(result.logprobs[scored], np.float32(0)),
            "ranks": np.append(result.ranks[scored], np.int32(0)),
        },
    )


def _params(trial: Trial, index: int) -> SamplingParams:
    seed = trial.seeds[index] if trial.seeds else 0
    return SamplingParams(
        temperature=trial.temperature, seed=seed, max_tokens=max(trial.max_tokens, 1), ignore_eos=True
    )


def _generate(subject: Subject, trial: Trial) -> Answer:
    for number, ids in enumerate(trial.before):
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        subject.generate([GenerateRequest(request_id=f"before {number}", token_ids=ids, params=params)], "")
    requests = [
        GenerateRequest(request_id=str(i), token_ids=ids, params=_params(trial, i))
        for i, ids in enumerate(trial.prompts)
    ]
    found = subject.generate(requests, str(trial.target))
    return refused(found.reason) if isinstance(found, RequestFailure) else generate_answer(found)


def generate_answer(found: Generated) -> Answer:
    """A continuation: one row per emitted token, raw log-probabilities beside it."""
    return Answer(
        token_ids=np.array(found.token_ids, np.int32),
        positions=np.array(found.positions, np.int64),
        logits=_stacked(found.rows),
        by_position={
            "tokens": np.array(found.token_ids, np.int32),
            "raw_logprobs": np.array(found.raw_logprobs, np.float32),
            "processed_logprobs": np.array(found.processed_logprobs, np.float32),
        },
        num_hit_tokens=found.num_hit_tokens,
        num_preemptions=found.num_preemptions,
        num_accepted=found.num_accepted,
        num_ahead=found.num_ahead,
    )


def _stacked(rows: Sequence[Float32Array]) -> Float32Array:
    return np.stack(rows) if rows else np.zeros((0, 0), np.float32)


def _draft(subject: Subject, trial: Trial) -> Answer:
    ids = trial.tokens
    anchors = sorted({max(1, len(ids) - 3), len(ids)})
    request = DraftRequest(request_id="draft", token_ids=ids, anchors=anchors, return_logits=True)
    [drafted] = subject.draft([request])
    if isinstance(drafted, RequestFailure):
        return refused(drafted.reason)
    assert drafted.logits is not None
    num_rows = drafted.logits.shape[1]
    positions = [anchor + 1 + i for anchor in anchors for i in range(num_rows)]
    whole: dict[str, Any] = {name: getattr(drafted, name) for name in DRAFT_ARRAYS}
    return Answer(
        token_ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int64),
        logits=drafted.logits.reshape(len(positions), -1),
        whole=whole,
    )
