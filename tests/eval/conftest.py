"""Fixtures of the evaluation tests: a scorer without a model, the bundled tokenizer, small workload files."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load_fake_scorer() -> ModuleType:
    """Test folders are no packages, so the module is loaded from its file, once."""
    name = "deepinfer_fake_scorer"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "fake_scorer.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def fake_logprobs() -> Callable[[Sequence[int]], Any]:
    """What the fake scorer answers for a window of ids."""
    found: Callable[[Sequence[int]], Any] = _load_fake_scorer().fake_logprobs
    return found


@pytest.fixture
def make_scorer(mini_dir: Path) -> Callable[..., Any]:
    """Build a fake scorer with the bundled tokenizer; keywords are its fields."""

    def make(**fields: Any) -> Any:
        return _load_fake_scorer().FakeScorer(**{"model_dir": mini_dir, **fields})

    return make


@pytest.fixture
def write_texts(tmp_path: Path) -> Callable[..., Path]:
    """Write a workload file of the given texts; ids are doc-0, doc-1 and so on, or the keywords."""

    def write(*texts: str, name: str = "small.jsonl", **named: str) -> Path:
        documents = {f"doc-{index}": text for index, text in enumerate(texts)} | named
        path = tmp_path / name
        lines = [json.dumps({"id": key, "text": text}, ensure_ascii=False) for key, text in documents.items()]
        path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8"))
        return path

    return write


@pytest.fixture
def write_tokens(tmp_path: Path) -> Callable[..., Path]:
    """Write a token file: keywords are sample ids, values their token ids."""

    def write(name: str = "tokens.jsonl", **sequences: list[int]) -> Path:
        path = tmp_path / name
        lines = [json.dumps({"id": key, "token_ids": ids}) for key, ids in sequences.items()]
        path.write_text("".join(line + "\n" for line in lines))
        return path

    return write
