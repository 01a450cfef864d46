"""One commit: the lock, the writer's generation, the one way to append, and one line for what fails."""

from __future__ import annotations

import datetime
import getpass
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import BaselineError, StoreError
from deepinfer.baselines.ledger import Draft, Ledger
from deepinfer.baselines.locks import HeldLock, LockConfig, LockKind, hold_lock
from deepinfer.baselines.records import Note, Revision
from deepinfer.baselines.state import State

COMMIT_LOCK = "commit"


@dataclass(frozen=True, kw_only=True)
class Author:
    """Who writes, why and with what.

    Attributes:
        reason: words for the history.
        command: command line, shown to those who wait and kept in the ledger.
        provenance: everything besides the platform that could move bits, read back where it is used.
        who: user name; None asks the system.
    """

    reason: str = ""
    command: str = ""
    provenance: dict[str, str] = field(default_factory=dict)
    who: str | None = None


class Committer:
    """Takes the lock of one store on behalf of one author."""

    def __init__(self, root: Path, ledger: Ledger, disk: Disk, lock: LockConfig, author: Author) -> None:
        """Nothing is locked yet."""
        self._root = root
        self._ledger = ledger
        self._disk = disk
        self._lock = replace(lock, command=lock.command or author.command)
        self._author = author
        self._work: HeldLock | None = None

    def fence(self) -> None:
        """Take a new generation: whatever another writer still has in flight is refused from now on."""
        with self.system_errors():
            self._ledger.append(None, lambda state: Draft(note=self.note("fence")), lambda: None)

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Keep others from the same long work inside the block; nothing is published once that is lost.

        Raises:
            LockError: somebody else does this work already.
        """
        with hold_lock(self._root / "locks", name, self._lock, self._disk) as held:
            self._work = held
            try:
                yield
            finally:
                self._work = None

    @contextmanager
    def committing(
        self, fence: bool = False
    ) -> Iterator[Callable[[Callable[[State], Draft | None]], Revision | None]]:
        """The lock, the writer's generation, and the one way to append."""
        ledger, lock = self._ledger, self._lock
        with self.system_errors(), hold_lock(self._root / "locks", COMMIT_LOCK, lock, self._disk) as held:
            if fence or lock.kind is LockKind.GENERATION:
                # A lock that can be taken from its holder needs the ledger to know who holds it now.
                ledger.append(None, lambda state: Draft(note=self.note("fence")), held.require)
            generation = ledger.catch_up().generation
            ledger.require_head()

            def still_held() -> None:
                held.require()
                if self._work is not None:
                    self._work.require()

            yield lambda draft: ledger.append(generation, draft, still_held)

    @contextmanager
    def system_errors(self) -> Iterator[None]:
        """One line for what the system refused."""
        try:
            yield
        except BaselineError:
            raise
        except OSError as error:
            raise StoreError(
                f"{error.filename or self._root}: the system refused ({error.strerror or error}); nothing "
                "half-written "
                "is visible, free space or mend the folder and run again"
            ) from error

    def note(self, action: str, campaign: str = "") -> Note:
        """What the history says of a revision of this author."""
        author = self._author
        return Note(
            action=action,
            time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            who=author.who or _user_name(),
            host=self._disk.host(),
            reason=author.reason,
            command=author.command,
            provenance=author.provenance,
            campaign=campaign,
        )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user without a name
        return "unknown"
