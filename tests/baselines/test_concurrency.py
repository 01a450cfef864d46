"""Many processes on one store: nothing is lost, and every key behaves like one register."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deepinfer.baselines.committing import Author
from deepinfer.baselines.locks import LockKind
from deepinfer.baselines.store import Baselines, LockOptions

HAMMER = Path(__file__).parent / "hammer.py"
Sound = Callable[[Path], None]
Beside = Callable[[str], ModuleType]


def hammer(folder: Path, refreshes: int, options: list[list[str]]) -> tuple[Path, list[dict[str, Any]]]:
    """Run one process for each list of options on one store; the store and everything they noted."""
    store = folder / "store"
    Baselines(store).writer(Author()).append_note("start")
    logs = [folder / f"log-{number}.json" for number in range(len(options))]
    processes = [
        subprocess.Popen(
            [sys.executable, str(HAMMER), str(store), str(log), str(number), str(refreshes), *extra],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, (log, extra) in enumerate(zip(logs, options, strict=True), 1)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors[-2000:]
    return store, [event for log in logs for event in json.loads(log.read_text())]


def require_registers(events: list[dict[str, Any]], beside: Beside, stale_reads: bool = False) -> int:
    """Every key's history is that of one register; the number of its operations."""
    module = beside("linearizability")
    for key in sorted({event["key"] for event in events}):
        history = [
            module.Operation(event["began"], event["ended"], event["kind"], event["value"])
            for event in events
            if event["key"] == key and (event["kind"] == "write" or not stale_reads)
        ]
        assert module.is_linearizable(history), key
    return len(events)


def require_last_writes(store: Path, events: list[dict[str, Any]], sound: Sound) -> None:
    """Every write is in the ledger exactly once, and what waits at the end is a last write."""
    sound(store)
    written = [event["value"] for event in events if event["kind"] == "write"]
    ledger = [
        change.entry.digest
        for _, changes in Baselines(store).history()
        for change in changes
        if change.entry is not None
    ]
    assert sorted(ledger) == sorted(written)


def test_four_processes_on_the_same_keys(quick_dir: Path, beside: Beside, sound: Sound) -> None:
    store, events = hammer(quick_dir, 15, [[]] * 4)
    require_registers(events, beside)
    require_last_writes(store, events, sound)


@pytest.mark.slow
def test_eight_processes_with_two_hundred_refreshes(quick_dir: Path, beside: Beside, sound: Sound) -> None:
    store, events = hammer(quick_dir, 200, [[]] * 8)
    assert require_registers(events, beside) > 8 * 200 * 3
    require_last_writes(store, events, sound)


def two_machines(folder: Path, refreshes: int, extra: list[str]) -> tuple[Path, list[dict[str, Any]]]:
    hosts = [["--host", name, "--stale", "0.05", *extra] for name in ("node-a", "node-b")]
    return hammer(folder, refreshes, hosts)


@pytest.mark.parametrize("kind", list(LockKind))
def test_two_machines_with_stale_caches(
    quick_dir: Path, beside: Beside, sound: Sound, kind: LockKind
) -> None:
    options = LockOptions(kind=kind)
    Baselines(quick_dir / "store", options=options).writer(Author()).append_note("create")
    store, events = two_machines(quick_dir, 8, [])
    require_registers(events, beside, stale_reads=True)
    require_last_writes(store, events, sound)
    hosts = {info.note.host for info in Baselines(store).state().revisions}
    assert hosts >= {"node-a", "node-b"}


@pytest.mark.parametrize("refreshes", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_two_machines_whose_kernel_locks_exclude_nobody(
    quick_dir: Path, beside: Beside, sound: Sound, refreshes: int
) -> None:
    store, events = two_machines(quick_dir, refreshes, ["--no-flock"])
    require_registers(events, beside, stale_reads=True)
    require_last_writes(store, events, sound)


def test_the_checker_sees_what_is_not_one_register(beside: Beside) -> None:
    module = beside("linearizability")
    write_a, write_b = module.Operation(0, 1, "write", "a"), module.Operation(2, 3, "write", "b")
    late_read = module.Operation(4, 5, "read", "a")
    assert module.is_linearizable([write_a, write_b, module.Operation(4, 5, "read", "b")])
    assert not module.is_linearizable([write_a, write_b, late_read]), "a lost update"
    overlapping, seen_b = module.Operation(0.5, 3, "write", "b"), module.Operation(1.5, 2, "read", "b")
    assert not module.is_linearizable([write_a, overlapping, seen_b, late_read]), "back to the old value"
    assert module.is_linearizable([write_a, overlapping, module.Operation(1.5, 2, "read", "a")])


def test_losing_an_update_is_seen(quick_dir: Path, beside: Beside, sound: Sound) -> None:
    """Negative control: one write that never reached the ledger."""
    store, events = hammer(quick_dir, 3, [[]] * 2)
    events.append({**events[0], "value": "0" * 64})
    with pytest.raises(AssertionError):
        require_last_writes(store, events, sound)
