"""A store seen from another machine: what this client looked at lately, it sees as it was.

Like a network file system's attribute cache, and meaner: names that were absent stay absent, listings and
contents stay as they were, for a while or until the client itself changes the folder. Creating, linking and
renaming happen on the server and are atomic.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from deepinfer.baselines.disk import Disk


class RemoteMount(Disk):
    """One client with its own cache and host name."""

    def __init__(self, host: str, stale_s: float) -> None:
        self._host, self._stale_s = host, stale_s
        self._seen: dict[Path, tuple[float, bytes | None]] = {}
        self._listed: dict[Path, tuple[float, list[str]]] = {}
        self.num_stale = 0

    def host(self) -> str:
        return self._host

    def read(self, path: Path) -> bytes:
        now = time.monotonic()
        kept = self._seen.get(path)
        if kept is not None and now - kept[0] < self._stale_s:
            self.num_stale += 1
            content = kept[1]
        else:
            try:
                content = super().read(path)
            except FileNotFoundError:
                content = None
            self._seen[path] = (now, content)
        if content is None:
            raise FileNotFoundError(2, os.strerror(2), str(path))
        return content

    def names(self, folder: Path) -> list[str]:
        now = time.monotonic()
        kept = self._listed.get(folder)
        if kept is None or now - kept[0] >= self._stale_s:
            kept = self._listed[folder] = (now, super().names(folder))
        return kept[1]

    def before(self, step: str, path: Path) -> None:
        if step in (
            "create",
            "rename",
            "unlink",
            "sync_folder",
        ):  # this client's own changes are seen at once
            self._seen.pop(path, None)
            self._listed.pop(path.parent, None)
