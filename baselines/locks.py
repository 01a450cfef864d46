"""Locks that save work and never carry correctness: the classes of filelock, chosen by mount.

``kernel`` is flock on local disks, free the moment its holder ends. ``strict`` is a soft lock of hard-linked
claims for NFS-like mounts: it never overlaps and never ages, so a dead holder must be broken by hand.
``generation`` hands a lock that was not renewed to the next in line, for unattended clusters; the ledger then
fences the old holder off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from filelock import FileLock, SoftFileLockProtocolError, SoftReadWriteLock, StrictSoftFileLock, Timeout

from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import LockError, LockLostError
from deepinfer.baselines.holders import HolderNote, describe_holder
from deepinfer.baselines.mounts import MountKind, mount_kind


class LockKind(StrEnum):
    """How writers of one store keep out of each other's way."""

    KERNEL = "kernel"
    STRICT = "strict"
    GENERATION = "generation"


@dataclass(frozen=True, kw_only=True)
class LockConfig:
    """How to take a lock.

    Attributes:
        kind: class of lock.
        timeout_s: longest wait.
        stale_s: generation locks only: seconds without renewal after which a holder may be replaced.
        command: what the holder does, shown to those who wait.
    """

    kind: LockKind
    timeout_s: float = 60.0
    stale_s: float = 90.0
    command: str = ""


def lock_path(folder: Path, name: str, kind: LockKind) -> Path:
    """Where a lock lies; kinds do not share a file, so that a store can change from one to another."""
    return folder / f"{name}.{kind}"


def default_kind(folder: Path) -> LockKind:
    """Kernel locks on local disks and SMB, strict soft locks anywhere else."""
    return LockKind.STRICT if mount_kind(folder) is MountKind.SHARED else LockKind.KERNEL


def require_kind_fits(kind: LockKind, folder: Path) -> None:
    """Refuse a kernel lock where it may exclude nobody.

    Raises:
        LockError: a kernel lock on a network file system.
    """
    if kind is LockKind.KERNEL and mount_kind(folder) is MountKind.SHARED:
        raise LockError(
            f"{folder}: this store is locked by the kernel, which does not exclude other machines on this "
            "mount; "
            "probe it with 'deepinfer doctor --lock-dir DIR', then 'deepinfer baseline unlock --kind strict'"
        )


class HeldLock:
    """A lock while it is held."""

    def __init__(self, compromise: Callable[[], str | None]) -> None:
        """``compromise`` tells why the lock is lost, None while it stands."""
        self._compromise = compromise

    def require(self) -> None:
        """Raise a :class:`LockLostError` when the lock is gone."""
        reason = self._compromise()
        if reason is not None:
            raise LockLostError(f"{reason}; nothing was published, run again")


@contextmanager
def hold_lock(folder: Path, name: str, config: LockConfig, disk: Disk) -> Iterator[HeldLock]:
    """Hold the lock ``name`` of a store's ``locks`` folder inside the block.

    Raises:
        LockError: timed out, naming the holder, its host, its age and what to do; or the system has no such
            lock.
    """
    path = lock_path(folder, name, config.kind)
    try:
        disk.make_folder(folder)
        disk.before("lock", path)
    except OSError as error:
        raise LockError(f"{path}: cannot be locked ({error.strerror or error}); check the mount") from error
    note = HolderNote(path, config.command, disk)
    take = {
        LockKind.KERNEL: _hold_kernel,
        LockKind.STRICT: _hold_strict,
        LockKind.GENERATION: _hold_generation,
    }[config.kind]
    # Only failures of taking the lock are the lock's: those inside the block are the caller's own.
    lock = take(path, config)
    try:
        held = lock.__enter__()
    except Timeout as error:
        raise LockError(describe_wait(path, config)) from error
    except (OSError, RuntimeError, SoftFileLockProtocolError) as error:
        raise LockError(
            f"{path}: the {config.kind} lock cannot be taken ({error}); 'deepinfer doctor --lock-dir "
            f"{folder}' "
            "tells which kind works on this mount"
        ) from error
    try:
        note.write()
        yield held
    finally:
        note.remove()
        with suppress(OSError):  # what was published stays published; a lock that cannot be let go times out
            lock.__exit__(None, None, None)


def describe_wait(path: Path, config: LockConfig) -> str:
    """One line for a lock that could not be had in time: who holds it, since when, and what to do."""
    advice = {
        LockKind.KERNEL: "it is free the moment that process ends",
        LockKind.STRICT: "look with 'deepinfer baseline unlock'; only when that process is gone, break it "
        "with 'deepinfer baseline unlock --break NAME'",
        LockKind.GENERATION: f"it is handed on {config.stale_s:.0f} s after that process stops renewing it",
    }[config.kind]
    return f"{path}: not free after {config.timeout_s:g} s, held by {describe_holder(path)}; {advice}"


@contextmanager
def _hold_kernel(path: Path, config: LockConfig) -> Iterator[HeldLock]:
    with FileLock(path, timeout=config.timeout_s, poll_interval=0.01, fallback_to_soft=False):
        yield HeldLock(lambda: None)


@contextmanager
def _hold_strict(path: Path, config: LockConfig) -> Iterator[HeldLock]:
    lock = StrictSoftFileLock(path, timeout=config.timeout_s)
    with lock:
        yield HeldLock(lambda: None if lock.is_locked else f"{path}: the strict lock was released")


@contextmanager
def _hold_generation(path: Path, config: LockConfig) -> Iterator[HeldLock]:
    lock = SoftReadWriteLock(
        path,
        timeout=config.timeout_s,
        is_singleton=False,
        heartbeat_interval=config.stale_s / 3,
        stale_threshold=config.stale_s,
        poll_interval=min(0.25, config.stale_s / 10),
    )

    def compromise() -> str | None:
        lost = lock.compromise
        return None if lost is None else f"{path}: the lock was lost while held ({lost.reason})"

    try:
        with lock.write_lock():
            yield HeldLock(compromise)
    finally:
        lock.close()
