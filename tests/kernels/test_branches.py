"""Branches of a recording, on streams that only write down what is asked of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from beside import Beside

from deepinfer.kernels.gpu import branches as branches_module
from deepinfer.kernels.gpu.branches import MOST_ROWS, NUM_LANES, Branches, _Lane

BESIDE = ["interpreted_branches.py"]


class FakeStream:
    """Events are named after the stream and how many it had before."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.num_events = name, log, 0

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} behind {other.name}")

    def record_event(self) -> str:
        self.num_events += 1
        return f"{self.name}.{self.num_events}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


class FakeDevice:
    """A device in a recording."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.is_recording = True
        self.now = main = FakeStream("main", self.log)
        fake: Any = branches_module.torch.cuda
        patch.setattr(fake, "current_stream", lambda place: self.now)
        patch.setattr(fake, "is_current_stream_capturing", lambda: self.is_recording)
        patch.setattr(fake, "stream", self._on)
        self.branches = Branches(torch.device("cpu"))
        lanes: Any = [_Lane(1 + n, FakeStream(f"lane {1 + n}", self.log)) for n in range(NUM_LANES)]  # type: ignore[arg-type]
        self.branches._lanes = lanes
        assert self.now is main

    @contextmanager
    def _on(self, stream: FakeStream) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def launch(self, name: str) -> str:
        self.log.append(f"{name} on {self.now.name}, workspace {self.branches.lane}")
        return name


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


def test_a_branch_begins_behind_what_was_launched_and_is_waited_for(device: FakeDevice) -> None:
    start = device.branches.start
    first = start(lambda: device.launch("a"), 3)
    second = start(lambda: device.launch("b"), 3)
    device.launch("c")
    assert (first(), second()) == ("a", "b")
    assert device.log == [
        "lane 1 behind main",
        "a on lane 1, workspace 1",
        "lane 2 behind main",
        "b on lane 2, workspace 2",
        "c on main, workspace 0",
        "main waits for lane 1.1",
        "main waits for lane 2.1",
    ]


def test_a_lane_is_taken_again_when_it_was_waited_for(device: FakeDevice) -> None:
    start = device.branches.start
    waits = [start(lambda: device.branches.lane, 1) for _ in range(NUM_LANES + 1)]
    assert [wait() for wait in waits] == [*range(1, NUM_LANES + 1), 0], (
        "work that finds no lane is done at once"
    )
    long = start(lambda: device.branches.lane, 1)
    assert [start(lambda: device.branches.lane, 1)() for _ in range(3)] == [2, 2, 2]
    assert long() == 1


def test_work_within_a_branch_has_a_lane_of_its_own(device: FakeDevice) -> None:
    start = device.branches.start

    def outer() -> str:
        inner = start(lambda: device.launch("inner"), 1)
        device.launch("outer")
        return inner()

    assert start(outer, 1)() == "inner"
    assert device.log == [
        "lane 1 behind main",
        "lane 2 behind lane 1",
        "inner on lane 2, workspace 2",
        "outer on lane 1, workspace 1",
        "lane 1 waits for lane 2.1",
        "main waits for lane 1.1",
    ]
    assert device.branches.lane == 0


def test_work_of_many_rows_and_of_eager_steps_runs_at_once(device: FakeDevice) -> None:
    start = device.branches.start
    start(lambda: device.launch("large"), MOST_ROWS + 1)
    device.is_recording = False
    start(lambda: device.launch("eager"), 1)
    assert device.log == ["large on main, workspace 0", "eager on main, workspace 0"]


def test_a_branch_holds_what_it_reads_until_it_is_waited_for(device: FakeDevice) -> None:
    operand = torch.zeros(1)
    alive = weakref.ref(operand)
    wait = device.branches.start(partial(torch.neg, operand), 1)
    del operand
    assert alive() is not None
    wait()
    del wait
    assert alive() is None


def test_a_branch_holds_the_results_within_it(device: FakeDevice) -> None:
    """Their lane is free again, and its next work is not behind the reader of the result."""
    start = device.branches.start
    results: list[weakref.ref[torch.Tensor]] = []

    def outer() -> None:
        found = start(lambda: torch.zeros(1), 1)()
        results.append(weakref.ref(found))

    wait = start(outer, 1)
    assert results[0]() is not None
    wait()
    del wait
    assert results[0]() is None


def test_a_failure_in_a_branch_leaves_the_main_workspace(device: FakeDevice) -> None:
    with pytest.raises(ZeroDivisionError):
        device.branches.start(lambda: 1 // 0, 1)
    assert device.branches.lane == 0


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_branches_that_run_late_give_the_bytes_of_ops_in_line(beside: Beside) -> None:
    found = beside.answer("interpreted_branches.py")
    of_sites = "site_input", "next_site", "routed_moe", "moe_expand", "moe_next_site"
    assert found["different"] == {name: [] for name in (*of_sites, "draft_decode")}
    assert found["num_waits"] == 8
    assert found["control"], "an operand that is changed too early would be seen"
