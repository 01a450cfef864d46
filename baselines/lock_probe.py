"""What may be trusted on a mount: several processes take each kind of lock, and their holds must not overlap.

Overlap is judged by intervals of one machine's monotonic clock, not by a shared counter, which would mix up
the coherence of caches with exclusion. Two mounts of one folder may be given; processes then take turns on
them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import BaselineError, StoreError
from deepinfer.baselines.locks import LockConfig, LockKind, default_kind, hold_lock
from deepinfer.baselines.mounts import file_system_of

_PROBE = "deepinfer-probe-"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What one kind of lock, or the put-if-absent that carries correctness, did on a mount.

    Attributes:
        name: kind of lock, or ``put-if-absent``.
        is_trusted: nothing overlapped and nothing failed.
        detail: one line.
    """

    name: str
    is_trusted: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class LockProbe:
    """A probed mount.

    Attributes:
        folder: where.
        file_system: its type, empty where unknown.
        chosen: the kind that a store created there would use.
        results: each kind, and put-if-absent.
    """

    folder: str
    file_system: str
    chosen: str
    results: tuple[ProbeResult, ...]

    @property
    def exit_code(self) -> int:
        """4 (*lock*) when the chosen kind or put-if-absent cannot be trusted."""
        wanted = {self.chosen, "put-if-absent"}
        return 4 if any(not result.is_trusted for result in self.results if result.name in wanted) else 0


def probe_locks(folders: Sequence[Path], num_processes: int = 4, num_holds: int = 25) -> LockProbe:
    """Try every kind of lock, and put-if-absent, with several processes in a fresh subfolder.

    Args:
        folders: one folder, or two paths to the same folder through different mounts.
        num_processes: processes at a time.
        num_holds: holds of each.

    Raises:
        StoreError: a folder that is missing or cannot be written.
    """
    name = _PROBE + uuid.uuid4().hex[:8]
    rooms = [folder / name for folder in folders]
    try:
        rooms[0].mkdir()
        if not all(room.is_dir() for room in rooms):
            raise StoreError(
                f"{folders[-1]}: does not show what was made in {folders[0]}; give two mounts of one"
            )
        results = [_probe(rooms, task, num_processes, num_holds) for task in (*LockKind, "put-if-absent")]
    except BaselineError:
        raise
    except OSError as error:
        raise StoreError(
            f"{folders[0]}: cannot be probed ({error.strerror or error}); name a folder you can write"
        ) from error
    finally:
        _remove(rooms[0])
    return LockProbe(
        folder=str(folders[0]),
        file_system=file_system_of(folders[0].absolute()),
        chosen=default_kind(folders[0].absolute()).value,
        results=tuple(results),
    )


def _probe(rooms: Sequence[Path], task: str, num_processes: int, num_holds: int) -> ProbeResult:
    command = [sys.executable, "-P", "-m", "deepinfer.baselines.lock_probe"]
    processes = [
        subprocess.Popen(
            [*command, str(rooms[index % len(rooms)]), task, str(num_holds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(num_processes)
    ]
    answers = [process.communicate(timeout=10 * _TIMEOUT_S) for process in processes]
    failed = [error for process, (_, error) in zip(processes, answers, strict=True) if process.returncode]
    if failed:
        reason = failed[0].strip().splitlines()[-1] if failed[0].strip() else "ended without a word"
        return ProbeResult(name=task, is_trusted=False, detail=f"failed: {reason}")
    held = [json.loads(answer) for answer, _ in answers]
    if task == "put-if-absent":
        won = sorted(name for names in held for name in names)
        twice = len(won) - len(set(won))
        detail = f"{num_holds} names, each won by one of {num_processes} processes"
        if twice or len(won) != num_holds:
            return ProbeResult(name=task, is_trusted=False, detail=f"{twice} names were won twice")
        return ProbeResult(name=task, is_trusted=True, detail=detail)
    intervals = sorted(tuple(interval) for intervals in held for interval in intervals)
    overlaps = sum(later[0] < earlier[1] for earlier, later in pairwise(intervals))
    detail = f"{len(intervals)} holds of {num_processes} processes, {overlaps} overlaps"
    return ProbeResult(name=task, is_trusted=not overlaps, detail=detail)


def _hold(room: Path, kind: LockKind, num_holds: int) -> list[tuple[float, float]]:
    config = LockConfig(kind=kind, timeout_s=_TIMEOUT_S, stale_s=30.0)
    held = []
    for _ in range(num_holds):
        with hold_lock(room, "probe", config, Disk()):
            began = time.monotonic()
            time.sleep(0.001)
            held.append((began, time.monotonic()))
    return held


def _put(room: Path, num_names: int) -> list[str]:
    disk, mine = Disk(), uuid.uuid4().hex.encode()
    names = [f"put-{number}" for number in range(num_names)]
    return [name for name in names if disk.publish(room / name, mine, room / "tmp")]


def _remove(room: Path) -> None:
    """Take the probe's folder away again; what cannot be removed is left to its owner."""
    for path in sorted(room.rglob("*"), reverse=True):
        try:
            path.rmdir() if path.is_dir() else path.unlink()
        except OSError:
            continue
    try:
        room.rmdir()
    except OSError:
        return


def main(arguments: Sequence[str]) -> None:
    """One probing process: ``FOLDER TASK COUNT``; its holds, or the names it won, as JSON."""
    room, task, count = Path(arguments[0]), arguments[1], int(arguments[2])
    found = _put(room, count) if task == "put-if-absent" else _hold(room, LockKind(task), count)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
