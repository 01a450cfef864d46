from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.errors import CheckpointError, ConfigError, NonFiniteError
from deepinfer.verify import runner
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import Status, Verdict
from deepinfer.verify.runner import VerifyConfig, run_verify, select_checks
from deepinfer.verify.size import Size

MakeContext = Callable[..., CheckContext]


def verify(context: CheckContext, **options: Any) -> Verdict:
    return run_verify(VerifyConfig(**options), open_context=lambda model_dir, engine, size: context)


def test_a_sound_engine_is_the_same_in_every_check_that_applies(make_context: MakeContext) -> None:
    verdict = verify(make_context())
    statuses = {result.name: result.status for result in verdict.results}
    assert list(statuses) == [check.name for check in runner.CHECKS]
    # the fake has no reference outputs, no ops, one process, no packed caches, and scores no texts
    absent = {name for name, status in statuses.items() if status is Status.NOT_APPLICABLE}
    assert absent == {"reference", "kernels", "process", "packing", "baselines"}
    assert {status for name, status in statuses.items() if name not in absent} == {Status.SAME}
    assert (verdict.exit_code, verdict.name) == (0, "same")
    assert verdict.num_comparisons > 5000


def test_a_check_asked_for_that_cannot_run_leaves_the_question_open(make_context: MakeContext) -> None:
    verdict = verify(make_context(), checks=("batch", "kernels"))
    assert [result.status for result in verdict.results] == [Status.SKIPPED, Status.SAME]
    assert verdict.exit_code == 5
    assert "asked for, and cannot run here: this engine shows no ops" in verdict.results[0].detail


def test_non_finite_comes_first_and_the_control_second() -> None:
    assert [check.name for check in runner.CHECKS][:2] == ["nonfinite", "rerun"]


def test_one_red_check_makes_the_verdict_different_and_hides_no_other(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.num_threads == 2 and config.max_batch_tokens == 2048 and len(results[0].token_ids) > 250:
            results[0].logprobs.view(np.uint32)[8] ^= 1

    verdict = verify(make_context(score=fault))
    assert (verdict.exit_code, verdict.name) == (1, "different")
    assert [r.name for r in verdict.results if r.status is Status.DIFFERENT] == ["threads"]
    assert len(verdict.results) == len(runner.CHECKS)


def test_values_that_are_not_finite_stop_the_checks_that_run_the_model(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        results[0].logits[3, 3] = np.nan

    verdict = verify(make_context(score=fault))
    statuses = {result.name: result.status for result in verdict.results}
    assert verdict.exit_code == 5
    assert statuses["nonfinite"] is Status.INCONCLUSIVE
    assert statuses["batch"] is Status.SKIPPED
    assert statuses["yoco-metadata"] is Status.SAME


def test_weights_that_are_not_finite_are_inconclusive(make_context: MakeContext) -> None:
    def refuse(config: EngineConfig) -> Any:
        raise NonFiniteError("embed.weight holds NaN")

    verdict = verify(make_context(open_subject=refuse), checks=("batch",))
    assert verdict.exit_code == 5
    assert verdict.results[0].detail == "embed.weight holds NaN"


def test_a_check_that_an_engine_error_stops_is_skipped_and_not_green(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        if config.num_threads == 2:
            raise ConfigError("two threads are not supported; use one")

    verdict = verify(make_context(score=fault), checks=("batch", "threads"))
    assert [result.status for result in verdict.results] == [Status.SAME, Status.SKIPPED]
    assert verdict.exit_code == 5
    assert "two threads are not supported" in verdict.results[1].detail


def test_a_model_that_cannot_be_opened_is_an_error_and_no_verdict(make_context: MakeContext) -> None:
    def refuse(config: EngineConfig) -> Any:
        raise CheckpointError("model.safetensors is cut short; download it again")

    with pytest.raises(CheckpointError, match="cut short"):
        verify(make_context(open_subject=refuse), checks=("batch",))


def test_a_defect_of_ours_is_never_turned_into_a_verdict(make_context: MakeContext) -> None:
    def fault(config: EngineConfig, results: list[Any]) -> None:
        raise IndexError("a bug")

    with pytest.raises(IndexError):
        verify(make_context(score=fault), checks=("batch",))


def test_progress_names_each_check_and_ends_full(make_context: MakeContext) -> None:
    seen: list[tuple[str, int, int]] = []
    config = VerifyConfig(checks=("nonfinite", "yoco-metadata"))
    context = make_context()
    run_verify(config, lambda *step: seen.append(step), open_context=lambda model_dir, engine, size: context)
    compiling = "first request (compiles the kernels once per version)"
    names = ["loading the model", compiling, "nonfinite", "yoco-metadata", "done"]
    assert seen == list(zip(names, [0, 0, 0, 1, 2], [2] * 5, strict=True))


def test_progress_tells_the_case_that_runs(make_context: MakeContext) -> None:
    seen: list[str] = []
    context = make_context(size=Size.QUICK)
    run_verify(
        VerifyConfig(checks=("threads",)),
        lambda what, done, total: seen.append(what),
        open_context=lambda model_dir, engine, size: context,
    )
    assert "threads: 2-0" in seen


def test_scenarios_run_by_themselves(make_context: MakeContext) -> None:
    verdict = verify(make_context(), scenarios=("all",))
    statuses = {result.name: result.status for result in verdict.results}
    assert len(statuses) == 13
    assert set(statuses.values()) == {Status.SAME}
    with pytest.raises(ConfigError, match="unknown scenario 'vllm-1'; known: all, vllm-11778"):
        verify(make_context(), scenarios=("vllm-1",))
    with pytest.raises(ConfigError, match="drop --check and --tier"):
        verify(make_context(), scenarios=("all",), checks=("batch",))


@pytest.mark.parametrize("tier", ["metadata", "logprobs", "confidence"])
def test_a_tier_runs_its_own_check_only(tier: str) -> None:
    assert [check.name for check in select_checks(VerifyConfig(tier=tier))] == [f"yoco-{tier}"]


def test_checks_run_in_their_own_order_however_they_are_named() -> None:
    chosen = select_checks(VerifyConfig(checks=("threads", "nonfinite")))
    assert [check.name for check in chosen] == ["nonfinite", "threads"]


def test_an_unknown_check_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown check 'bacth'; known: nonfinite, rerun, reference, kernels, batch"
    ):
        select_checks(VerifyConfig(checks=("bacth",)))


def test_a_check_outside_the_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of the checks batch is of tier metadata"):
        select_checks(VerifyConfig(checks=("batch",), tier="metadata"))
