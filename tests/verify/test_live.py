"""The checks on the real engine: green as it is, red when a fault is seeded into its own code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.engine.api import EngineConfig, PrefillMode
from deepinfer.engine.errors import ConfigError
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.model_config import ModelConfig
from deepinfer.engine.prefill import Int64, PrefillRule
from deepinfer.verify.checks import batch, yoco, yoco_metadata
from deepinfer.verify.context import BASE_LENGTHS, CheckContext
from deepinfer.verify.live import open_context, plan_rows_of
from deepinfer.verify.result import Status
from deepinfer.verify.runner import CHECKS, VerifyConfig, run_verify
from deepinfer.verify.size import Size


@pytest.fixture(scope="module")
def live() -> CheckContext:
    return open_context(None, EngineConfig())


def test_documents_are_real_text_of_each_workload_with_one_begin_token(live: CheckContext) -> None:
    names = [document.sample_id.split("-")[0] for document in live.documents]
    assert names == ["prose", "technical", "code", "longctx", "unicode"]
    for document in live.documents:
        assert document.token_ids[0] == live.model.bos_token_id
        assert live.model.bos_token_id not in document.token_ids[1:]
        assert len(document.token_ids) > max(BASE_LENGTHS)


def test_a_folder_without_a_config_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        open_context(tmp_path, EngineConfig())


LOGITS_FREE = {"nonfinite", "reference", "yoco-metadata", "baselines"}
"""Checks that look at something else than pairs of logits rows."""


@pytest.mark.parametrize(
    ("size", "total", "each"),
    [
        (Size.QUICK, 600, 1),
        pytest.param(Size.DEFAULT, 600, 32, marks=pytest.mark.slow),
        pytest.param(Size.THOROUGH, 5500, 256, marks=pytest.mark.slow),
    ],
)
def test_the_bundled_model_passes_every_check(size: Size, total: int, each: int) -> None:
    verdict = run_verify(VerifyConfig(size=size))
    assert {result.name: result.status for result in verdict.results} == {
        check.name: Status.SAME for check in CHECKS
    }
    assert verdict.num_comparisons >= total
    few = {r.name: r.num_comparisons for r in verdict.results if r.num_comparisons < each}
    assert few.keys() <= LOGITS_FREE


def spoil_logits(change: Callable[[Any], None]) -> Callable[..., Any]:
    """The engine's own last operation, followed by a change."""
    sound = Transformer.logits

    def spoilt(self: Transformer, normed: Any) -> Any:
        logits = sound(self, normed)
        change(logits)
        return logits

    return spoilt


def test_a_head_that_depends_on_the_rows_beside_it_is_found(
    live: CheckContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(logits: Any) -> None:
        if len(logits) > 200:
            logits[:, 7] += logits[:, 7].abs() * 2.0**-23

    monkeypatch.setattr(Transformer, "logits", spoil_logits(change))
    result = batch.CHECK.run(live)
    assert result.status is Status.DIFFERENT
    assert result.difference is not None
    assert result.difference.comparison.first is not None


def test_a_window_that_is_off_by_one_in_compact_is_found(
    live: CheckContext, model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = PrefillRule.decoder_window_low

    def shifted(self: PrefillRule, positions: Int64, num_tokens: Int64) -> Int64:
        low = sound(self, positions, num_tokens)
        return low + 1 if self.mode is PrefillMode.COMPACT else low

    monkeypatch.setattr(PrefillRule, "decoder_window_low", shifted)
    assert yoco.run(live).status is Status.DIFFERENT
    monkeypatch.setattr(yoco_metadata, "NUM_RANDOM_STEPS", 5)
    planned = CheckContext(
        model=model,
        model_name="mini",
        engine=EngineConfig(),
        open_subject=lambda config: pytest.fail("the metadata tier opened a model"),
        plan_rows=plan_rows_of(model),
        load_documents=list,
        reference_dir=None,
    )
    assert yoco_metadata.run(planned).status is Status.DIFFERENT


def test_the_engine_plans_as_defined(live: CheckContext) -> None:
    assert yoco_metadata.run(live).status is Status.SAME
