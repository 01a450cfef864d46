"""Locks the log-probabilities of any engine from its own tests: ``pytest --deepinfer-baselines DIR``.

    def test_greeting(locked_logprobs):
        token_ids, logprobs = my_engine.score("Hello")
        locked_logprobs("greeting", token_ids, logprobs)

The first run locks with ``--deepinfer-lock`` (never when CI is set); every other run compares byte by byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deepinfer.baselines.key import Key
    from deepinfer.baselines.store import Baselines

_STORE = "deepinfer_store"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this plugin."""
    group = parser.getgroup("deepinfer", "locked log-probabilities")
    group.addoption("--deepinfer-baselines", metavar="DIR", help="store of locked log-probabilities")
    group.addoption("--deepinfer-lock", action="store_true", help="lock what is not locked yet")
    group.addoption(
        "--deepinfer-platform",
        metavar="NAME",
        help="what the bits may depend on; the default is this processor and instruction set",
    )


@pytest.fixture(scope="session")
def deepinfer_baselines(request: pytest.FixtureRequest) -> Baselines:
    """The store that ``--deepinfer-baselines`` names; tests that need it are skipped without."""
    from deepinfer.baselines.store import Baselines

    folder = request.config.getoption("--deepinfer-baselines")
    if folder is None:
        pytest.skip("no --deepinfer-baselines DIR")
    return Baselines(Path(folder))


@pytest.fixture
def locked_logprobs(request: pytest.FixtureRequest, deepinfer_baselines: Baselines) -> Callable[..., None]:
    """``locked_logprobs(sample, token_ids, logprobs, scored=None, model=...)`` fails on a changed bit."""

    def check(sample: str, token_ids: Any, logprobs: Any, scored: Any = None, model: str = "model") -> None:
        __tracebackhide__ = True
        key = _key(request, sample, model)
        if request.config.getoption("--deepinfer-lock") and not os.environ.get("CI"):
            deepinfer_baselines.lock(key, token_ids, logprobs, scored=scored, reason=request.node.nodeid)
            return
        if not deepinfer_baselines.exists:
            pytest.fail(f"{deepinfer_baselines.root}: nothing is locked; run once with --deepinfer-lock")
        outcome = deepinfer_baselines.check(key, token_ids, logprobs, scored)
        if not outcome.is_same:
            hint = "; run once with --deepinfer-lock" if outcome.status == "missing" else ""
            pytest.fail(f"{outcome.status}: {key}: {outcome.reason}{hint}", pytrace=False)

    return check


def _key(request: pytest.FixtureRequest, sample: str, model: str) -> Key:
    from deepinfer.baselines.fingerprint import cpu_platform
    from deepinfer.baselines.key import Key

    platform = request.config.getoption("--deepinfer-platform") or cpu_platform("cpu")
    workload = request.node.path.stem
    return Key.of(sample, workload=workload, model=model, platform=platform)
