"""From a document and its window policies to requests, and from results back to rows.

Windows of different policies that hold the same ids are one request: their log-probabilities are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deepinfer.engine.api import Int32Array, ScoreRequest, ScoreResult
from deepinfer.eval.rows import SampleRows, blank_rows
from deepinfer.eval.windows import Window, WindowPolicy


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplePlan:
    """What to run for one sample, and where each result belongs.

    Attributes:
        sample_id: the sample's name.
        token_ids: [S] int32, begin token included.
        requests: distinct windows, in the order in which the policies first need them.
        uses: policy label -> its windows, each with the id of the request that scores it.
        num_top: most likely tokens asked for per position.
    """

    sample_id: str
    token_ids: Int32Array
    requests: tuple[ScoreRequest, ...]
    uses: Mapping[str, tuple[tuple[Window, str], ...]]
    num_top: int = 0


def plan_sample(
    sample_id: str,
    token_ids: Int32Array,
    policies: Sequence[WindowPolicy],
    bos_token_id: int,
    num_top: int = 0,
) -> SamplePlan:
    """Cut a sample by every policy; request ids are ``SAMPLE#NUMBER`` and so unique within a run."""
    ids_of_request: list[Int32Array] = []
    score_start: list[int] = []
    index_of_ids: dict[bytes, int] = {}
    uses: dict[str, tuple[tuple[Window, str], ...]] = {}
    for policy in policies:
        used = []
        for window in policy.windows(len(token_ids)):
            ids = token_ids[window.start : window.end]
            if window.begin_replaces_first:
                ids = np.concatenate([np.array([bos_token_id], dtype=np.int32), ids[1:]])
            index = index_of_ids.setdefault(ids.tobytes(), len(ids_of_request))
            if index == len(ids_of_request):
                ids_of_request.append(ids)
                score_start.append(len(ids))
            score_start[index] = min(score_start[index], window.first_scored - window.start)
            used.append((window, f"{sample_id}#{index}"))
        uses[policy.label] = tuple(used)
    requests = tuple(
        ScoreRequest(
            request_id=f"{sample_id}#{index}", token_ids=ids.tolist(), score_start=start, num_top=num_top
        )
        for index, (ids, start) in enumerate(zip(ids_of_request, score_start, strict=True))
    )
    return SamplePlan(sample_id=sample_id, token_ids=token_ids, requests=requests, uses=uses, num_top=num_top)


def assemble_rows(plan: SamplePlan, results: Mapping[str, ScoreResult]) -> list[SampleRows]:
    """The rows of a sample, one table per policy, from the results of all of its requests (by request id)."""
    tables = []
    for label, used in plan.uses.items():
        rows = blank_rows(plan.sample_id, label, plan.token_ids, plan.num_top)
        for window, request_id in used:
            _fill_window(rows, window, results[request_id])
        tables.append(rows)
    return tables


def _fill_window(rows: SampleRows, window: Window, result: ScoreResult) -> None:
    """Copy the scored positions of one window; holes of truncated prefill keep their window but no number."""
    in_document = slice(window.first_scored, window.end)
    in_window = slice(window.first_scored - window.start, window.end - window.start)
    valid = result.valid[in_window]
    rows.window_id[in_document] = window.window_id
    rows.valid[in_document] = valid
    np.copyto(rows.logprob[in_document], result.logprobs[in_window], where=valid)
    np.copyto(rows.rank[in_document], result.ranks[in_window], where=valid)
    if rows.top_ids is not None and rows.top_logprobs is not None:
        assert result.top_ids is not None, "the engine was asked for the most likely tokens"
        assert result.top_logprobs is not None, "they come with their log-probabilities"
        np.copyto(rows.top_ids[in_document], result.top_ids[in_window], where=valid[:, None])
        np.copyto(rows.top_logprobs[in_document], result.top_logprobs[in_window], where=valid[:, None])
