"""The append-only ledger: revision N+1 is put if and only if it is absent; nothing is ever rewritten.

    LEDGER/000000000001.jsonl     one file a revision, in the format of ``records``
    HEAD                          number and last hash of the newest acknowledged revision

HEAD is a hint and an anchor: the files are the truth, HEAD shows when the newest of them were lost.
"""

from __future__ import annotations

import gc
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deepinfer.baselines.blobs import BlobRef
from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import DamagedError, LockError, LockLostError
from deepinfer.baselines.records import (
    BadLineError,
    Change,
    Note,
    Revision,
    decode_revision,
    encode_revision,
    open_lines,
    seal_lines,
    to_json,
)
from deepinfer.baselines.state import State

HEAD_GENESIS = "head"
_VISIBLE_WITHIN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Head:
    """Content of HEAD."""

    revision: int
    last_hash: str


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A revision before it has a place in the chain; the fields are those of ``Revision``."""

    note: Note
    changes: tuple[Change, ...] = ()
    blobs: tuple[BlobRef, ...] = ()
    removed_blobs: tuple[str, ...] = ()


class Ledger:
    """Reads and extends one ledger; keeps its fold and reads new revisions only."""

    def __init__(self, root: Path, disk: Disk) -> None:
        """``root`` is the store's folder. Nothing is read yet."""
        self._root = root
        self._folder = root / "ledger"
        self._temporary = root / "tmp"
        self._disk = disk
        self.state = State()
        self._damage: DamagedError | None = None

    def path(self, number: int) -> Path:
        """File of a revision."""
        return self._folder / f"{number:012d}.jsonl"

    def catch_up(self) -> State:
        """Fold every revision that is published by now.

        Raises:
            DamagedError: a revision is not what was published, or HEAD names one that is gone.
        """
        with _collector_paused():
            for _ in self.revisions():
                pass
        return self.state

    def revisions(self) -> Iterator[Revision]:
        """Fold revision by revision, yielding each; for readers that want the changes themselves."""
        while (revision := self._fold_next()) is not None:
            yield revision

    def read_head(self) -> Head | None:
        """HEAD, or None when it is not there.

        Raises:
            DamagedError: it is torn.
        """
        path = self._root / "HEAD"
        try:
            content = self._disk.read(path)
        except FileNotFoundError:
            return None
        try:
            [(record, _)] = open_lines(content, HEAD_GENESIS)
            members = json.loads(record)
            return Head(revision=members["revision"], last_hash=members["last_hash"])
        except (ValueError, KeyError) as error:
            raise DamagedError(str(path), f"is torn ({error})") from None

    def write_head(self) -> None:
        """Point HEAD at the newest folded revision."""
        members = {"revision": self.state.number, "last_hash": self.state.last_hash}
        content, _ = seal_lines([to_json(members)], HEAD_GENESIS)
        self._disk.replace(self._root / "HEAD", content, self._temporary)

    def require_head(self) -> None:
        """Refuse a ledger whose newest revisions were lost; a HEAD that is absent, torn or behind is no loss.

        Raises:
            DamagedError: HEAD names a revision that is not there, or is another.
        """
        try:
            head = self.read_head()
        except DamagedError:
            return  # fsck says so and recovers it from the chain
        if head is not None and head.revision > self.state.number:
            self.catch_up()  # published between our reading the ledger and reading HEAD
        if head is not None and not self.holds(head):
            raise DamagedError(
                str(self.path(head.revision)), "was published (HEAD names it) and is gone or another now"
            )

    def holds(self, head: Head) -> bool:
        """Whether the folded ledger contains the revision that a HEAD names."""
        revisions = self.state.revisions
        return head.revision == 0 or (
            head.revision <= len(revisions) and revisions[head.revision - 1].last_hash == head.last_hash
        )

    def append(
        self,
        generation: int | None,
        build: Callable[[State], Draft | None],
        still_held: Callable[[], None],
    ) -> Revision | None:
        """Publish what ``build`` makes of the newest state as the next revision.

        Args:
            generation: the writer's fencing generation; None takes the next one, which fences all others off.
            build: called again on a newer state whenever another writer was first; None publishes nothing.
            still_held: raises when the writer's lock is gone; called last before publishing.

        Raises:
            LockLostError: another writer has fenced this one off.
            OSError: the system failed; the revision is published whole or not at all.
        """
        deadline_s = time.monotonic() + _VISIBLE_WITHIN_S
        while True:
            state = self.catch_up()
            if generation is not None and state.generation > generation:
                raise LockLostError(
                    f"{self._root}: another writer took over (generation {state.generation}, ours is "
                    f"{generation}): {describe_writer(state.revisions[-1].note)}; nothing was published, "
                    "run again"
                )
            drafted = build(state)
            if drafted is None:
                return None
            revision = Revision(
                number=state.number + 1,
                generation=state.generation + 1 if generation is None else generation,
                nonce=uuid.uuid4().hex,
                note=drafted.note,
                changes=drafted.changes,
                blobs=drafted.blobs,
                removed_blobs=drafted.removed_blobs,
            )
            content = encode_revision(revision, state.last_hash)
            self._disk.make_folder(self._folder)
            still_held()
            if self._disk.publish(self.path(revision.number), content, self._temporary):
                self._wait_for(revision.number, deadline_s)
                self.write_head()
                return revision
            self._wait_for(revision.number, deadline_s)

    def _wait_for(self, number: int, deadline_s: float) -> None:
        """Fold a revision that exists; a network file system may need a moment to show it."""
        pause_s = 0.001
        while self.state.number < number and self._fold_next() is None:
            if time.monotonic() > deadline_s:
                raise LockError(
                    f"{self.path(number)}: exists but cannot be seen from here; check the mount's attribute "
                    "caching"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
            self._disk.names(self._folder)  # makes a network file system look at the folder again

    def _fold_next(self) -> Revision | None:
        number = self.state.number + 1
        path = self.path(number)
        if self._damage is not None:
            raise self._damage
        try:
            content = self._disk.read(path)
        except FileNotFoundError:
            return None
        try:
            revision = decode_revision(content, number, self.state.last_hash)
            self.state.apply(revision)
            return revision
        except BadLineError as error:
            self._damage = DamagedError(f"{path} line {error.line}", error.reason)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._damage = DamagedError(str(path), f"is not a revision ({error})")
        raise self._damage


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Reading makes a great many small objects and no cycles; looking for some doubled its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def describe_writer(note: Note) -> str:
    """Who wrote a revision, in a few words."""
    return f"{note.who} on {note.host} at {note.time} ({note.action})"
