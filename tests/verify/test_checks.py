"""Each check is green on a sound engine and red on a fault seeded along its own axis, and names the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deepinfer.engine.api import EngineConfig, PrefillMode, RequestFailure
from deepinfer.verify.checks import batch, nonfinite, rerun, threads, yoco, yoco_draft, yoco_metadata
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.subject import DecoderRows, PlannedChunk

MakeContext = Callable[..., CheckContext]
ALL = (nonfinite, rerun, batch, threads, yoco_metadata, yoco, yoco_draft)


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
    result = check.run(make_context())
    assert result.status is Status.SAME, result
    assert result.name == check.NAME == check.CHECK.name


def test_comparisons_are_whole_logits_rows(make_context: MakeContext) -> None:
    # 14 batches, each comparing the 97 rows of the sample (96 scored positions and the row after the end).
    assert batch.run(make_context()).num_comparisons == 14 * 97
    assert threads.run(make_context()).num_comparisons == 300 + 257 + 129 + 383 + 191
    assert rerun.run(make_context()).num_comparisons == 2 * (300 + 257 + 129 + 383 + 191)
    # keep is 72: prompts of 71 and 72 tokens have no hole, the others keep 72 rows.
    assert yoco.run(make_context()).num_comparisons == 71 + 5 * 72
    assert yoco_draft.run(make_context()).num_comparisons == 6 * 2 * 3


@pytest.mark.parametrize("size", batch.BATCH_SIZES)
def test_one_flipped_logprob_bit_in_one_batch_size_is_found(size: int, make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(results) == size:
            flip_bit(sample_of(results).logprobs, (41,))

    result = batch.run(make_context(score=fault))
    assert f"of a batch of {size}" in difference(result)[0]
    assert difference(result)[1:] == ("logprobs", 1)
    assert result.difference is not None
    assert result.difference.position == 41
    assert "position 41" in result.detail
    assert "1 ulp" in result.detail


@pytest.mark.parametrize(("place", "index"), [("first", 0), ("middle", 8), ("last", 15)])
def test_a_fault_at_one_place_of_a_batch_is_found(place: str, index: int, make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(results) == 16 and results[index] is sample_of(results):
            flip_bit(results[index].logits, (5, 3), bit=31)

    result = batch.run(make_context(score=fault))
    assert difference(result)[:2][0].endswith(f"{place} of a batch of 16")
    assert difference(result)[1] == "logits"


def test_a_neighbour_that_grows_must_not_matter(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if any(len(result.token_ids) == 63 for result in results):
            flip_bit(sample_of(results).final_logits, (0,))

    assert difference(batch.run(make_context(score=fault)))[1] == "final_logits"


def test_results_in_another_order_are_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        results.reverse()

    assert batch.run(make_context(score=fault)).status is Status.DIFFERENT


def test_an_engine_that_drifts_from_run_to_run_is_found(make_context: MakeContext) -> None:
    calls = []

    def fault(config: EngineConfig, results: list[Any]) -> None:
        calls.append(len(results))
        if len(calls) == 2:
            flip_bit(results[3].ranks, (7,))

    case, array, _ = difference(rerun.run(make_context(score=fault)))
    assert (array, case) == ("ranks", "doc-3[0:383] against a second run")


def test_an_engine_that_differs_once_reopened_is_found(make_context: MakeContext, model: Any) -> None:
    opened: list[EngineConfig] = []

    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(opened) == 2:
            flip_bit(results[0].logits, (299, 0))

    context = make_context(score=fault)
    open_sound = context._open_subject

    def open_counted(config: EngineConfig) -> Any:
        opened.append(config)
        return open_sound(config)

    context._open_subject = open_counted
    assert "opened afresh" in difference(rerun.run(context))[0]


def test_a_sum_split_by_threads_is_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.num_threads == 2:
            flip_bit(results[4].logits, (190, 2))

    assert difference(threads.run(make_context(score=fault)))[0] == "doc-4[0:191] on 1 thread against 2"


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

    result = threads.run(make_context(score=fault))
    assert result.status is Status.INCONCLUSIVE
    assert "position 9" in result.detail


def test_a_request_refused_on_one_side_is_a_difference(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if len(results) == 33:
            results[:] = [RequestFailure(request_id=r.request_id, reason="no room") for r in results]

    result = batch.run(make_context(score=fault))
    assert result.status is Status.DIFFERENT
    assert "refused: no room" in result.detail


def test_requests_refused_on_both_sides_are_skipped_not_green(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        results[:] = [RequestFailure(request_id=r.request_id, reason="no room") for r in results]

    for check in (nonfinite, rerun, batch, threads, yoco):
        assert check.run(make_context(score=fault)).status is Status.SKIPPED


def test_a_mode_with_other_logits_is_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.prefill is PrefillMode.COMPACT:
            flip_bit(results[5].logits, (-1, 0))

    assert difference(yoco.run(make_context(score=fault)))[1] == "logits"


def test_a_mode_with_another_cache_entry_is_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, state: dict[str, npt.NDArray[Any]]) -> None:
        if config.prefill is PrefillMode.MASK:
            flip_bit(state["layer 5 compressed"], (70,))

    assert difference(yoco.run(make_context(state=fault)))[1:] == ("layer 5 compressed", 1)


def test_a_mode_without_a_cache_entry_is_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, state: dict[str, npt.NDArray[Any]]) -> None:
        if config.prefill is PrefillMode.COMPACT:
            del state["layer 0 window"]

    result = yoco.run(make_context(state=fault))
    assert result.status is Status.DIFFERENT
    assert "exists on the left side only" in result.detail


def test_holes_in_the_wrong_place_are_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.prefill is not PrefillMode.OFF:
            results[3].valid[:] = False

    result = yoco.run(make_context(score=fault))
    assert result.status is Status.DIFFERENT
    assert "should be valid" in result.detail


def test_drift_from_the_exact_model_is_a_figure_and_no_verdict(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.prefill is not PrefillMode.OFF:
            for result in results:
                result.logprobs[result.valid] -= np.float32(0.5)

    result = yoco.run(make_context(score=fault))
    assert result.status is Status.SAME
    assert result.figures["drift_num_rows"] == 70 + 71 + 4 * 71
    assert result.figures["drift_mean_abs_logprob"] == pytest.approx(0.5, abs=1e-3)
    assert result.figures["drift_mean_kl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("array", ["tokens", "base_logits", "logits", "confidence_logits", "confidences"])
def test_a_draft_that_depends_on_the_mode_is_found(array: str, make_context: MakeContext) -> None:
    def fault(config: EngineConfig, drafted: list[Any]) -> None:
        if config.prefill is PrefillMode.COMPACT:
            spoilt = getattr(drafted[4], array)
            flip_bit(spoilt, (1, 0, 0)[: spoilt.ndim])

    assert difference(yoco_draft.run(make_context(draft=fault)))[1:] == (array, 1)


@pytest.mark.parametrize("mode", [PrefillMode.MASK, PrefillMode.COMPACT])
@pytest.mark.parametrize(
    ("array", "index", "change"),
    [
        ("window", (-1, 0), -1),
        ("window", (0, -1), 1),
        ("slots", (-1,), 1),
        ("positions", (-1,), 1),
        ("kept", (0,), 1),
        ("visible", (-1,), 1),
    ],
)
def test_a_plan_that_is_off_by_one_is_found(
    array: str, index: tuple[int, ...], change: int, mode: PrefillMode, make_context: MakeContext
) -> None:
    def fault(planned: PrefillMode, chunks: list[PlannedChunk], rows: DecoderRows) -> None:
        if planned is mode and chunks[-1].num_tokens == 133 and len(rows.positions):
            getattr(rows, array)[index] += change

    result = yoco_metadata.run(make_context(plan=fault))
    assert result.status is Status.DIFFERENT
    assert "of a prompt of 133" in result.detail


def test_steps_cover_edges_and_thousands_of_random_prompts(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the number of random steps that users get
    window, keep = model.sliding_window, model.min_keep
    planned = list(yoco_metadata.steps(window, keep))
    assert planned == list(yoco_metadata.steps(window, keep))
    assert sum(len(chunks) for _, chunks in planned) > 2000
    assert all(kept >= keep for kept, _ in planned)
    prompts = {(chunk.num_tokens, kept) for kept, chunks in planned for chunk in chunks}
    assert {(1, keep), (window, keep), (keep, keep), (keep + 1, keep), (keep + window, keep)} <= prompts
    starts = {(c.num_tokens - kept - c.start) for kept, chunks in planned for c in chunks if c.start > 0}
    assert {-1, 0, 1} <= starts  # chunks that begin around the first kept row


def test_batches_hold_no_request_twice(make_context: MakeContext) -> None:
    context = make_context()
    for seed in range(14):
        names = [sample.sample_id for sample in batch.fillers(context, 32, seed)]
        assert len(set(names)) == 32
