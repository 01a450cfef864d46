from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deepinfer.eval.plan import assemble_rows, plan_sample
from deepinfer.eval.windows import parse_policy

IDS = np.array([0, *range(10, 10 + 40)], dtype=np.int32)


def policies(*texts: str) -> list[Any]:
    return [parse_policy(text) for text in texts]


def test_windows_of_the_same_ids_are_one_request() -> None:
    """Strided windows at even multiples of the stride are the disjoint ones; llama.cpp's first chunk too."""
    plan = plan_sample("a", IDS, policies("disjoint:8", "strided:8:4", "half:8"), bos_token_id=0)
    alone = [plan_sample("a", IDS, policies(text), 0) for text in ("disjoint:8", "strided:8:4", "half:8")]
    sequences = [tuple(request.token_ids) for request in plan.requests]
    assert len(sequences) == len(set(sequences))
    assert set(sequences) == {tuple(r.token_ids) for one in alone for r in one.requests}
    assert len(sequences) < sum(len(one.requests) for one in alone)
    assert len({request.request_id for request in plan.requests}) == len(plan.requests)


def test_sharing_changes_no_row(make_scorer: Callable[..., Any]) -> None:
    texts = ("disjoint:8", "strided:8:4", "half:8", "document")

    def rows(*wanted: str) -> dict[str, str]:
        plan = plan_sample("a", IDS, policies(*wanted), bos_token_id=0, num_top=2)
        results = {result.request_id: result for result in make_scorer().score(plan.requests)}
        return {table.policy: table.digest for table in assemble_rows(plan, results)}

    assert rows(*texts) == {label: digest for text in texts for label, digest in rows(text).items()}


def test_the_begin_token_stands_first_in_the_first_window_only() -> None:
    plan = plan_sample("a", IDS, policies("disjoint:8"), bos_token_id=0)
    assert [request.token_ids[0] for request in plan.requests] == [0, 17, 25, 33, 41]
    assert all(request.token_ids.count(0) <= 1 for request in plan.requests)


def test_half_windows_replace_the_first_id_by_the_begin_token() -> None:
    plan = plan_sample("a", IDS, policies("half:8"), bos_token_id=0)
    assert [request.token_ids[:2] for request in plan.requests][:2] == [[0, 10], [0, 18]]
    (rows,) = assemble_rows(plan, {r.request_id: r for r in _answers(plan)})
    assert rows.token_id.tolist() == IDS.tolist(), "rows name the document's own ids"


def test_log_probabilities_are_not_shifted(
    make_scorer: Callable[..., Any], fake_logprobs: Callable[..., Any]
) -> None:
    """Row p holds log p(id at p | ids before p) of its window, not that of a neighbour."""
    plan = plan_sample("a", IDS, policies("disjoint:8"), bos_token_id=0)
    results = {result.request_id: result for result in make_scorer().score(plan.requests)}
    (rows,) = assemble_rows(plan, results)
    for start in range(0, len(IDS), 8):
        window = IDS[start : start + 8]
        assert rows.logprob[start + 1 : start + 8].tolist() == fake_logprobs(window)[1:].tolist()
        assert not rows.valid[start]
        assert np.isnan(rows.logprob[start])
        assert rows.rank[start] == -1
    assert rows.window_id.tolist() == [-1 if p % 8 == 0 else p // 8 for p in range(len(IDS))]


def test_holes_of_truncated_prefill_hold_no_number(make_scorer: Callable[..., Any]) -> None:
    plan = plan_sample("a", IDS, policies("document"), bos_token_id=0, num_top=1)
    results = {r.request_id: r for r in make_scorer(num_hidden=30).score(plan.requests)}
    (rows,) = assemble_rows(plan, results)
    assert np.flatnonzero(rows.valid).tolist() == list(range(30, 41))
    assert np.isnan(rows.logprob[:30]).all()
    assert rows.top_ids is not None
    assert (rows.top_ids[:30] == -1).all()


def _answers(plan: Any) -> list[Any]:
    from deepinfer.engine.api import ScoreResult

    return [
        ScoreResult(
            request_id=request.request_id,
            token_ids=np.array(request.token_ids, dtype=np.int32),
            logprobs=np.zeros(len(request.token_ids), np.float32),
            ranks=np.zeros(len(request.token_ids), np.int32),
            valid=np.ones(len(request.token_ids), np.bool_),
        )
        for request in plan.requests
    ]
