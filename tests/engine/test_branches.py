"""Work that may run beside what is launched after it: the same bytes if it runs as late as it may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from trace_play import packed
from turn_play import chained_core, plain, played, truth_of

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.llm import LLM
from deepinfer.engine.model.block import Block
from deepinfer.engine.speculation.options import Speculation
from deepinfer.kernels.cpu.backend import CpuOps

T = TypeVar("T")


class Late:
    """``Ops.beside`` that does nothing until somebody waits.

    Attributes:
        started, waited: how many branches were, each counted once.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.started = self.waited = 0
        patch.setattr(CpuOps, "beside", lambda ops, work, num_rows: self._start(work))

    def _start(self, work: Callable[[], T]) -> Callable[[], T]:
        found: list[T] = []
        self.started += 1

        def wait() -> T:
            if not found:
                self.waited += 1
                found.append(work())
            return found[0]

        return wait


@pytest.fixture(scope="module")
def llm(golden_dir: Path) -> LLM:
    return LLM(golden_dir / "ckpt_A_quantized", EngineConfig(num_threads=2))


def answers(llm: LLM, asked: Any, truth: Any) -> dict[str, list[bytes]]:
    """Of turns with the model's own drafts."""
    core, _ = chained_core(llm, truth, Speculation.from_text("fixed:2"))
    return {name: list(found) for name, found in played(core, asked).items()}


def test_branches_that_run_late_move_no_bit(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = plain(3, 20)
    records, truth = truth_of(llm, asked)
    wanted = {r.request_id: [packed(one) for one in said] for r, said in zip(asked, records, strict=True)}
    branches = Late(monkeypatch)
    assert answers(llm, asked, truth) == wanted
    assert branches.started == branches.waited > 100, "a recording must not end before its branches"
    sound = Block.compress
    # control: nobody waits for the compressed entries
    monkeypatch.setattr(Block, "compress", lambda *given: sound(*given) and (lambda: None))
    assert answers(llm, asked, truth) != wanted
    assert branches.started > branches.waited


def test_branches_that_no_layer_asks_for_are_waited_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a model without Engram layers."""
    asked = plain(2, 6)
    _, truth = truth_of(llm, asked)
    branches = Late(monkeypatch)
    monkeypatch.setattr(Block, "remember", lambda block, ops, streams, memories, probe: streams)
    answers(llm, asked, truth)
    assert branches.started == branches.waited
