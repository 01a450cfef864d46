"""``store.json``: what a store is, one sealed line, so that every flipped bit is found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import BaselineError, DamagedError
from deepinfer.baselines.locks import LockKind
from deepinfer.baselines.records import open_lines, seal_lines, to_json

SCHEMA_VERSION = 2
"""Version 2 added the kind of lock, which writers of one store must share. Version 1 is upgraded on
request."""

STORE_FILE = "store.json"
_CHAIN = "store"


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    """Content of ``store.json``.

    Attributes:
        version: schema version of the whole store.
        lock_kind: how its writers exclude each other; None in version 1, which did not say.
    """

    version: int
    lock_kind: LockKind | None

    def encode(self) -> bytes:
        """The file's bytes."""
        members: dict[str, object] = {"format": "deepinfer-baselines", "version": self.version}
        if self.lock_kind is not None:
            members["lock_kind"] = self.lock_kind.value
        return seal_lines([to_json(members)], _CHAIN)[0]


def read_store_file(root: Path, disk: Disk) -> StoreFile | None:
    """The store file of a folder; None when there is none.

    Raises:
        DamagedError: it was changed.
        BaselineError: it is of a later version than this one reads.
    """
    path = root / STORE_FILE
    try:
        content = disk.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        [(record, _)] = open_lines(content, _CHAIN)
        members = json.loads(record)
        version, kind = members["version"], members.get("lock_kind")
        if version > SCHEMA_VERSION:
            raise BaselineError(
                f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, which this version reads; "
                "upgrade deepinfer"
            )
        return StoreFile(version=version, lock_kind=None if kind is None else LockKind(kind))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(str(path), f"is not what was written ({error})") from None
