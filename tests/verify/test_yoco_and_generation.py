"""Truncated prefill and generation under verify: faults along these axes are found, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from deepinfer.engine.api import EngineConfig, PrefillMode
from deepinfer.verify.checks import (
    decode,
    preemption,
    prefix,
    process,
    seeds,
    yoco,
    yoco_draft,
    yoco_metadata,
)
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.subject import DecoderRows, Generated, PlannedChunk

MakeContext = Callable[..., CheckContext]


def flip_bit(array: npt.NDArray[Any], index: tuple[int, ...], bit: int = 0) -> None:
    """Flip one bit of one element in place."""
    array.view(f"u{array.dtype.itemsize}")[index] ^= 1 << bit


def difference(result: CheckResult) -> tuple[str, str, int]:
    """Case, array and number of differing elements of the first difference."""
    assert result.status is Status.DIFFERENT, result
    assert result.difference is not None
    return result.difference.case, result.difference.array, result.difference.comparison.num_differing


def test_a_mode_with_other_logits_is_found(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.prefill is PrefillMode.COMPACT:
            flip_bit(results[-1].logits, (-1, 0))

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
            results[len(results) // 2].valid[:] = False

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
            spoilt = getattr(drafted[-1], array)
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


def spoil_row(found: Generated, index: int) -> None:
    """Flip the last bit of one logit of a generated row."""
    flip_bit(found.rows[index], (3,))


@pytest.mark.parametrize(
    ("check", "spoils"),
    [
        (prefix, lambda config, found: found[0].num_hit_tokens > 0),
        (preemption, lambda config, found: found[-1].num_preemptions > 0),
        (seeds, lambda config, found: len(found) > 1),
        (decode, lambda config, found: True),
    ],
)
def test_generated_rows_are_compared(check: Any, spoils: Any, make_context: MakeContext) -> None:
    def fault(config: EngineConfig, found: list[Generated]) -> None:
        if spoils(config, found):
            for generated in found:
                spoil_row(generated, -1)

    result = check.CHECK.run(make_context(generate=fault))
    assert difference(result)[1] == "logits"
    assert result.failure is not None
    assert result.failure.explanation.num_differing_rows == 1


@pytest.mark.parametrize("check", [prefix, preemption])
def test_a_case_that_puts_nothing_to_the_test_is_skipped(check: Any, make_context: MakeContext) -> None:
    def fault(config: EngineConfig, found: list[Generated]) -> None:
        found[:] = [replace(one, num_hit_tokens=0, num_preemptions=0) for one in found]

    result = check.CHECK.run(make_context(generate=fault))
    assert result.status is Status.SKIPPED
    assert "put to the test" in result.detail


def test_checks_without_their_means_do_not_apply(make_context: MakeContext) -> None:
    assert process.CHECK.run(make_context()).status is Status.NOT_APPLICABLE
