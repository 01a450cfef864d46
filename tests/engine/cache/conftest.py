"""Fixtures of the cache tests: the state machines that compare pool and tree with simple models."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load_beside(stem: str) -> ModuleType:
    """Test folders are no packages, so a module beside the tests is loaded from its file, once."""
    name = f"deepinfer_cache_{stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{stem}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def pool_machine() -> Any:
    """The state machine class for a block pool."""
    return _load_beside("pool_machine").PoolMachine


@pytest.fixture(scope="session")
def tree_machine() -> Any:
    """The state machine class for a prefix tree and its pool."""
    return _load_beside("tree_machine").TreeMachine
