"""Trees of tensors keep their values on the way, and a step never looks at a value before it asks for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer.engine import drawn_rows, logprobs, sampler
from deepinfer.engine.api import EngineConfig, GenerateRequest, SamplingParams, ScoreRequest
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.llm import LLM
from deepinfer.engine.speculation import drafter
from deepinfer.engine.transfer import Movable, moved, pack, rebuilt, tensors_in, unpacked
from deepinfer.engine.turns import turn_run


@dataclass(frozen=True)
class Leaf(Movable):
    values: torch.Tensor
    name: str


def test_a_packed_tree_comes_out_as_it_went_in() -> None:
    tree = {
        "a": Leaf(torch.arange(5), "first"),
        "b": torch.rand(3, 7)[:, ::2],
        "c": {"empty": torch.empty(0, 4), "flags": torch.tensor([True, False, True])},
        "d": None,
    }
    sent = list(tensors_in(tree))
    assert len(sent) == 4
    back = rebuilt(tree, unpacked(pack(sent), sent))
    for one, other in zip(sent, tensors_in(back), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    first = back["a"]
    assert isinstance(first, Leaf)
    assert first.name == "first"
    assert moved(tree, torch.device("cpu")) is tree


_LOOKS = ("numpy", "item", "tolist", "cpu", "__bool__", "__int__", "__float__", "nonzero", "__index__")
"""Methods of a tensor that wait for its values on a device."""

ON_A_CPU = "sampler.py: top_tokens calls nonzero"
"""Its own way to alternatives, which is not taken on a device."""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Looks of the engine, and of this file, at tensors that were not fetched; ``kernels`` may look."""
    fetched: list[torch.Tensor] = []
    looks: list[str] = []

    def fetch(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = tuple(tensor.clone() for tensor in tensors)
        fetched.extend(found)
        return found

    for module in (sampler, drawn_rows, drafter, turn_run):
        monkeypatch.setattr(module, "fetched", fetch)

    def begin(*tensors: torch.Tensor) -> Callable[[], tuple[torch.Tensor, ...]]:
        found = fetch(*tensors)
        return lambda: found

    monkeypatch.setattr(logprobs, "fetching", begin)
    for name in _LOOKS:
        monkeypatch.setattr(torch.Tensor, name, _watch(name, getattr(torch.Tensor, name), fetched, looks))
    yield looks
    monkeypatch.undo()


def _watch(name: str, sound: Any, fetched: list[torch.Tensor], looks: list[str]) -> Any:
    def look(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        caller = sys._getframe(1).f_code
        path = Path(caller.co_filename)
        is_ours = path.parent.parts[-1] == "engine" or "engine" in path.parts[-3:-1]
        if (
            is_ours
            and path.name not in ("engram_table.py", "transfer.py", "slips.py")
            and not any(self is one for one in fetched)
        ):
            looks.append(f"{path.name}: {caller.co_name} calls {name}")
        return sound(self, *arguments, **named)

    return look


def traffic(llm: LLM) -> None:
    """Prefill, decode, prefix hits, alternatives, a bias, scored prompts."""
    params = SamplingParams(seed=1, max_tokens=6, num_logprobs=2, ignore_eos=True)
    asked = [
        GenerateRequest(
            request_id=f"r{i}", token_ids=range(4, 140 + i), params=params, prompt_logprobs=i == 1
        )
        for i in range(3)
    ]
    llm.generate(asked)
    llm.generate(asked)
    llm.score([ScoreRequest(request_id="s", token_ids=range(4, 90))])


def test_no_step_looks_at_a_value_before_all_are_fetched(golden_dir: Path, watched: list[str]) -> None:
    llm = LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=1, recorded_steps=True))
    watched.clear()  # loading looks at weights
    traffic(llm)
    assert set(watched) <= {ON_A_CPU}


def test_a_look_is_seen(golden_dir: Path, watched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=1))
    sound = StepView.main_rows

    def looking(self: StepView, source: int, ratio: int, selected: torch.Tensor, rows: Any) -> Any:
        selected.max().item()
        return sound(self, source, ratio, selected, rows)

    monkeypatch.setattr(StepView, "main_rows", looking)
    watched.clear()
    traffic(llm)
    assert set(watched) - {ON_A_CPU} == {"test_transfer.py: looking calls item"}
