"""Another process: started at once, asked later, ended when nobody will ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.errors import DeepInferError
from deepinfer.verify.case import Ask, Trial
from deepinfer.verify.child import Elsewhere
from deepinfer.verify.context import CheckContext
from deepinfer.verify.runner import VerifyConfig, run_verify

MakeContext = Callable[..., CheckContext]
TRIAL = Trial(ask=Ask.SCORE, prompts=((0, 1, 2),))


def test_a_process_that_cannot_run_the_case_says_why(tmp_path: Path) -> None:
    with pytest.raises(DeepInferError, match=r"another process could not run the case: .*config\.json"):
        Elsewhere(tmp_path, TRIAL, EngineConfig()).answer()


class Started:
    """Stands for a process and tells what became of it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def stop(self) -> None:
        self.events.append("stopped")


def test_an_error_leaves_no_process_behind(make_context: MakeContext) -> None:
    started = Started()

    def fails(config: EngineConfig) -> Any:
        raise DeepInferError("no such model")

    context = make_context(open_subject=fails)
    context.start_elsewhere = lambda trial, config: started  # type: ignore[assignment,return-value]
    with pytest.raises(DeepInferError, match="no such model"):
        run_verify(VerifyConfig(), open_context=lambda model, engine, size: context)
    assert started.events == ["stopped"]
