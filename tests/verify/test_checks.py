"""Each check is green on a sound engine and red on a fault seeded along its own axis, and names the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deepinfer.engine.api import EngineConfig, RequestFailure
from deepinfer.verify.case import Ask
from deepinfer.verify.checks import (
    batch,
    chunks,
    decode,
    grid,
    nonfinite,
    preemption,
    prefix,
    process,
    profiles,
    rerun,
    seeds,
    threads,
    yoco,
    yoco_draft,
    yoco_metadata,
)
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.size import Size

MakeContext = Callable[..., CheckContext]
OF_CASES = (rerun, batch, chunks, threads, prefix, preemption, decode, seeds, profiles, grid)
ALL = (nonfinite, *OF_CASES, yoco_metadata, yoco, yoco_draft)


def flip_bit(array: npt.NDArray[Any], index: tuple[int, ...], bit: int = 0) -> None:
    """Flip one bit of one element in place."""
    array.view(f"u{array.dtype.itemsize}")[index] ^= 1 << bit


def sample_of(results: list[Any]) -> Any:
    """The result of the sample among its neighbours, which are shorter."""
    return max(results, key=lambda result: len(result.token_ids))


def difference(result: CheckResult) -> tuple[str, str, int]:
    """Case, array and number of differing elements of the first difference."""
    assert result.status is Status.DIFFERENT, result
    assert result.difference is not None
    return result.difference.case, result.difference.array, result.difference.comparison.num_differing


@pytest.mark.parametrize("check", ALL, ids=lambda check: check.NAME)
def test_a_sound_engine_passes(check: Any, make_context: MakeContext) -> None:
    result = check.CHECK.run(make_context())
    assert result.status is Status.SAME, result
    assert result.name == check.NAME == check.CHECK.name


def test_comparisons_are_whole_logits_rows(make_context: MakeContext) -> None:
    context = make_context()
    for check in OF_CASES:
        result = check.CHECK.run(context)
        rows = 0
        for case in check.cases(context):
            if case.right.ask is Ask.STATE:
                continue
            rows += case.left.max_tokens or len(case.left.tokens)
        assert result.num_comparisons == rows, check.NAME
        assert rows >= 32, check.NAME
    # keep is 72: a prompt of 71 has no hole, the others keep 72 rows
    of_cases = 4 * 72 + 2 * 2 * 16
    assert yoco.run(context).num_comparisons == 71 + 5 * 72 + of_cases
    assert yoco_draft.run(context).num_comparisons == 6 * 2 * 3 + 3 * 2 * 3


@pytest.mark.parametrize("size", list(Size))
def test_the_axes_are_covered_in_every_size(size: Size, make_context: MakeContext) -> None:
    context = make_context(size=size)
    names = [
        case.case_id for check in (*OF_CASES, process, yoco, yoco_draft) for case in check.cases(context)
    ]
    assert len(set(names)) == len(names)
    least = {Size.QUICK: 1, Size.DEFAULT: 32, Size.THOROUGH: 256}[size]
    for check in OF_CASES:
        found = [c.left.max_tokens or len(c.left.tokens) for c in check.cases(context)]
        assert sum(found) >= least, check.NAME


def test_cases_are_the_same_on_every_run(make_context: MakeContext) -> None:
    for check in OF_CASES:
        assert list(check.cases(make_context())) == list(check.cases(make_context()))


@pytest.mark.parametrize("size", [2, 3, 7, 16, 33])
def test_one_flipped_logprob_bit_in_one_batch_size_is_found(size: int, make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(results) == size:
            flip_bit(sample_of(results).logprobs, (41,))

    result = batch.CHECK.run(make_context(score=fault))
    assert f"batch/{size}-" in difference(result)[0]
    assert difference(result)[1:] == ("logprobs", 1)
    assert result.difference is not None
    assert result.difference.position == 41
    assert "position 41" in result.detail
    assert "1 ulp" in result.detail
    assert result.failure is not None
    assert result.failure.explanation.repro == f"deepinfer bisect {result.failure.case.case_id}"


@pytest.mark.parametrize(("place", "index"), [("first", 0), ("middle", 8), ("last", 15)])
def test_a_fault_at_one_place_of_a_batch_is_found(place: str, index: int, make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(results) == 16 and results[index] is sample_of(results):
            flip_bit(results[index].logits, (5, 3), bit=31)

    result = batch.CHECK.run(make_context(score=fault))
    assert difference(result)[0].startswith(f"batch/16-{place} ")
    assert difference(result)[1] == "logits"


def test_a_neighbour_that_grows_must_not_matter(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if any(len(result.token_ids) == 63 for result in results):
            flip_bit(sample_of(results).final_logits, (0,))

    assert difference(batch.CHECK.run(make_context(score=fault)))[1] == "logits"


def test_results_in_another_order_are_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        results.reverse()

    assert batch.CHECK.run(make_context(score=fault)).status is Status.DIFFERENT


def test_an_engine_that_drifts_from_run_to_run_is_found(make_context: MakeContext) -> None:
    calls = []

    def fault(config: EngineConfig, results: list[Any]) -> None:
        calls.append(len(results))
        if len(calls) == 2:
            flip_bit(results[0].ranks, (7,))

    case, array, _ = difference(rerun.CHECK.run(make_context(score=fault)))
    assert array == "ranks"
    assert case.startswith("rerun/again-0 ")


def test_an_engine_that_differs_once_reopened_is_found(make_context: MakeContext, model: Any) -> None:
    opened: list[EngineConfig] = []

    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(opened) == 2:
            flip_bit(results[0].logits, (99, 0))

    context = make_context(score=fault)
    open_sound = context._open_subject

    def open_counted(config: EngineConfig) -> Any:
        opened.append(config)
        return open_sound(config)

    context._open_subject = open_counted
    assert "rerun/reopened-0" in difference(rerun.CHECK.run(context))[0]


def test_a_sum_split_by_threads_is_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.num_threads == 2:
            flip_bit(results[1].logits, (190, 2))

    assert difference(threads.CHECK.run(make_context(score=fault)))[0].startswith("threads/2-1 ")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("array", ["logits", "logprobs", "final_logits"])
def test_values_that_are_not_finite_are_inconclusive(
    array: str, value: float, make_context: MakeContext
) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        getattr(results[2], array)[11] = value

    result = nonfinite.run(make_context(score=fault))
    assert result.status is Status.INCONCLUSIVE
    assert "doc-2" in result.detail


def test_equal_nan_bytes_on_both_sides_are_not_called_the_same(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        results[0].logits[9, 4] = np.nan

    result = threads.CHECK.run(make_context(score=fault))
    assert result.status is Status.INCONCLUSIVE
    assert "position 9" in result.detail


def test_a_request_refused_on_one_side_is_a_difference(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(results) == 33:
            results[:] = [RequestFailure(request_id=r.request_id, reason="no room") for r in results]

    result = batch.CHECK.run(make_context(score=fault))
    assert result.status is Status.DIFFERENT
    assert "refused: no room" in result.detail


def test_requests_refused_on_both_sides_are_skipped_not_green(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        results[:] = [RequestFailure(request_id=r.request_id, reason="no room") for r in results]

    for check in (nonfinite, rerun, batch, threads, yoco):
        assert check.CHECK.run(make_context(score=fault)).status is Status.SKIPPED


def test_batches_hold_no_request_twice(make_context: MakeContext) -> None:
    context = make_context()
    for seed in range(14):
        names = [sample.sample_id for sample in batch.fillers(context, 32, seed)]
        assert len(set(names)) == 32
