"""From one schema version of the store to the next; reading an old store never changes it."""

from __future__ import annotations

from collections.abc import Callable

from deepinfer.baselines.committing import Author
from deepinfer.baselines.locks import LockKind, default_kind
from deepinfer.baselines.store import Baselines
from deepinfer.baselines.store_file import SCHEMA_VERSION, STORE_FILE, StoreFile

Step = Callable[[Baselines, StoreFile, LockKind | None], StoreFile]


def upgrade_store(store: Baselines, author: Author, lock_kind: LockKind | None = None) -> tuple[int, int]:
    """Bring a store to the newest schema version; the ledger's history tells of it.

    Args:
        store: the store; nobody else may write to it meanwhile.
        author: who upgrades.
        lock_kind: the kind of lock that its writers share from now on; None chooses by the mount.

    Returns:
        The version it had and the one it has.

    Raises:
        UnlockedError: there is no store, or it is damaged.
        StoreError: the folder cannot be written; the store is of the old or the new version, never between.
    """
    store.state()  # a damaged store is not upgraded
    found = store.require_store()
    before = found.version
    while found.version < SCHEMA_VERSION:
        found = _STEPS[found.version](store, found, lock_kind)
        store.disk.replace(store.root / STORE_FILE, found.encode(), store.root / "tmp")
    if before != found.version:
        store.writer(author).append_note("upgrade")
    return before, found.version


def set_lock_kind(store: Baselines, author: Author, lock_kind: LockKind) -> None:
    """Change how the writers of a store exclude each other; those in flight are fenced off.

    Raises:
        UnlockedError, StoreError: as `upgrade_store`.
    """
    found = store.require_store()
    content = StoreFile(version=found.version, lock_kind=lock_kind).encode()
    store.disk.replace(store.root / STORE_FILE, content, store.root / "tmp")
    store.writer(author).fence()


def _from_1_to_2(store: Baselines, found: StoreFile, lock_kind: LockKind | None) -> StoreFile:
    """Version 1 left the kind of lock to each writer; two kinds at once exclude nobody."""
    return StoreFile(version=2, lock_kind=lock_kind or default_kind(store.root.absolute()))


_STEPS: dict[int, Step] = {1: _from_1_to_2}
