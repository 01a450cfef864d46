"""Who holds a lock: notes beside locks, and the claims of strict soft locks."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import StrictSoftFileLock

from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import LockError

_SUFFIXES = (".kernel", ".strict", ".generation")


def describe_holder(path: Path) -> str:
    """Who holds a lock, as far as the note beside it tells."""
    try:
        members = json.loads(_note_path(path).read_bytes())
        age_s = max(0.0, time.time() - members["since"])
        return (
            f"pid {members['pid']} on {members['host']} for {age_s:.0f} s"
            f"{' (' + members['command'] + ')' if members['command'] else ''}"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown process (no note beside the lock)"


@dataclass(frozen=True)
class Claim:
    """One claim on a strict soft lock."""

    name: str
    state: str
    pid: int
    host: str


def strict_claims(path: Path) -> list[Claim]:
    """Claims on a strict soft lock; none for locks of another kind."""
    if not Path(f"{path}.filelock").is_dir():
        return []
    claims = StrictSoftFileLock(path).claims
    return [Claim(claim.name, claim.state, claim.pid, claim.hostname) for claim in claims]


def break_claim(path: Path, name: str) -> None:
    """Break a claim of a strict soft lock and what else its holder claims there.

    The caller fences that holder off in the ledger.

    Raises:
        LockError: there is no such claim.
    """
    lock = StrictSoftFileLock(path)
    tokens = {claim.token for claim in lock.claims if claim.name == name}
    if not tokens:
        raise LockError(f"{path}: has no claim {name!r}; look with 'deepinfer baseline unlock'")
    for claim in lock.claims:
        if claim.token in tokens:
            lock.force_break(claim.name)


@dataclass(frozen=True)
class LockView:
    """One lock of a store, as it looks from outside.

    Attributes:
        path: its file.
        holder: who holds it, by the note beside it; None when there is no note.
        claims: claims on it, for a strict soft lock.
    """

    path: Path
    holder: str | None
    claims: tuple[Claim, ...]


def list_locks(folder: Path) -> list[LockView]:
    """Every lock that was ever taken in a store's ``locks`` folder."""
    paths = sorted({folder / _base_name(path.name) for path in folder.glob("*")})
    return [
        LockView(
            path=path,
            holder=describe_holder(path) if _note_path(path).exists() else None,
            claims=tuple(strict_claims(path)),
        )
        for path in paths
        if path.suffix in _SUFFIXES
    ]


def _base_name(name: str) -> str:
    for extra in (".holder", ".filelock", ".rw"):
        name = name.removesuffix(extra)
    return name


class HolderNote:
    """A note beside a lock, for those who wait; nothing depends on it."""

    def __init__(self, path: Path, command: str, disk: Disk) -> None:
        """Nothing is written yet; ``command`` is what the holder does."""
        self._path = _note_path(path)
        self._members = {
            "pid": os.getpid(),
            "host": disk.host(),
            "since": time.time(),
            "command": command,
        }

    def write(self) -> None:
        """Write it, if the folder allows."""
        with suppress(OSError):
            self._path.write_text(json.dumps(self._members), encoding="utf-8")

    def remove(self) -> None:
        """Remove it, if it is still ours."""
        with suppress(OSError, ValueError):
            if json.loads(self._path.read_bytes()) == self._members:
                self._path.unlink()


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".holder")
