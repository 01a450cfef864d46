"""Publishing: bits become blobs, decisions become revisions, all under one short lock.

The lock is held for a commit, never while a model runs, so that many machines can refresh one store at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from deepinfer.baselines.blobs import MAX_ROWS, BlobFolder, BlobRef, encode_blob
from deepinfer.baselines.canonical import Sample
from deepinfer.baselines.committing import Committer
from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import BaselineError
from deepinfer.baselines.key import Key
from deepinfer.baselines.ledger import Draft, Ledger
from deepinfer.baselines.pending import (
    accept_changes,
    lock_changes,
    refresh_changes,
    reject_changes,
    remove_changes,
)
from deepinfer.baselines.records import Change, Entry
from deepinfer.baselines.state import State

_NO_BLOB = ""
_MAX_ROUNDS = 100
_MAX_GROUP_S = 30.0

Group = list[tuple[Key, Sample]]
Found = Sequence[tuple[Key, Entry]]
MakeChanges = Callable[[State, Found], list[Change]]


class _StateMovedError(Exception):
    """The group's blob is not, or no longer, there; publish it and try again."""


class Writer:
    """Extends one store on behalf of one author."""

    def __init__(self, committer: Committer, ledger: Ledger, blobs: BlobFolder, disk: Disk) -> None:
        """Nothing is locked or written yet."""
        self._committer = committer
        self._ledger = ledger
        self._blobs = blobs
        self._disk = disk

    def lock(self, samples: Iterable[tuple[Key, Sample]]) -> list[Change]:
        """Lock keys for the first time; keys that hold these very bits are left alone.

        Raises:
            AlreadyLockedError: a key holds other bits; samples before it may have been locked.
            LockError, StoreError: nothing more was published.
        """
        return self._publish_samples("lock", _groups(samples), lock_changes)

    def refresh(
        self, samples: Iterable[tuple[Key, Sample]], campaign: str = "", group_rows: int = MAX_ROWS
    ) -> list[Change]:
        """Put bits that differ from what is locked up for review.

        Args:
            samples: keys and their arrays; published in groups as they come.
            campaign: a sharded refresh; keys are then noted as settled even when nothing moved.
            group_rows: rows published at once; an interruption loses no more than that, or half a minute.

        Raises:
            LockError, StoreError: nothing more was published.
        """
        return self._publish_samples(
            "refresh",
            _groups(samples, group_rows),
            lambda state, found: refresh_changes(state, found, campaign),
            campaign,
        )

    def accept(self, keys: Sequence[Key]) -> list[Change]:
        """Lock what waits for review; the author's reason is kept."""
        return self._publish("accept", lambda state: accept_changes(state, keys))

    def reject(self, keys: Sequence[Key]) -> list[Change]:
        """Drop what waits for review."""
        return self._publish("reject", lambda state: reject_changes(state, keys))

    def remove(self, keys: Sequence[Key]) -> list[Change]:
        """End keys; their history stays."""
        return self._publish("prune", lambda state: remove_changes(state, keys))

    def remove_blobs(self) -> list[BlobRef]:
        """Delete the blobs that no key needs any more; every other writer in flight is fenced off.

        The one operation that relies on its lock: a writer that the lock does not keep out could name a blob
        in the moment between the revision here and the deletion. Prune from one machine, when nobody
        refreshes.
        """
        removed: list[BlobRef] = []

        def draft(state: State) -> Draft | None:
            tables = (state.locked, state.pending)
            used = {
                entry.blob for table in tables for samples in table.values() for entry in samples.values()
            }
            removed[:] = [blob for digest, blob in state.blobs.items() if digest not in used]
            names = tuple(blob.digest for blob in removed)
            return Draft(note=self._committer.note("prune"), removed_blobs=names) if removed else None

        if draft(self._ledger.catch_up()) is None:
            return []
        with self._committer.committing(fence=True) as append:
            append(draft)
            for blob in removed:
                self._disk.unlink(self._blobs.path(blob.digest))
        return removed

    def fence(self) -> None:
        """Take a new generation: whatever another writer still has in flight is refused from now on."""
        self._committer.fence()

    def working(self, name: str) -> AbstractContextManager[None]:
        """Keep others from the same long work inside the block; nothing is published once that is lost.

        Raises:
            LockError: somebody else does this work already.
        """
        return self._committer.working(name)

    def append_note(self, action: str) -> None:
        """Publish a revision without changes, so that the history tells of it."""
        with self._committer.committing() as append:
            append(lambda state: Draft(note=self._committer.note(action)))

    def _publish_samples(
        self, action: str, groups: Iterable[Group], make: MakeChanges, campaign: str = ""
    ) -> list[Change]:
        changes: list[Change] = []
        for group in groups:
            for _ in range(_MAX_ROUNDS):
                try:
                    changes += self._publish_group(action, group, make, campaign)
                    break
                except _StateMovedError:
                    continue
            else:
                raise BaselineError("other writers change the same keys all the time; run again")
        return changes

    def _publish_group(self, action: str, group: Group, make: MakeChanges, campaign: str) -> list[Change]:
        """Publish one group: its blob first, outside the lock, then the revision that points into it."""
        with self._committer.system_errors():
            drafts = [(key, _entry(sample)) for key, sample in group]
            wanted = make(self._ledger.catch_up(), drafts)
            needed = {change.key for change in wanted if change.entry is not None}
            found: list[tuple[Key, Entry]] = []
            blob = None
            if needed:
                chosen = [(key, sample) for key, sample in group if key in needed]
                encoded = encode_blob([key.sample for key, _ in chosen], [sample for _, sample in chosen])
                blob = self._blobs.publish(encoded)
                starts = {key: start for (key, _), start in zip(chosen, encoded.starts, strict=True)}
                for key, entry in drafts:
                    found.append(
                        (key, entry._replace(blob=blob.digest, row=starts[key]) if key in needed else entry)
                    )
            elif not wanted:
                return []
            else:
                found = drafts

        def changes(state: State) -> list[Change]:
            made = make(state, found)
            if any(change.entry is not None and change.entry.blob == _NO_BLOB for change in made):
                raise _StateMovedError
            return made

        return self._publish(action, changes, (blob,) if blob else (), campaign)

    def _publish(
        self,
        action: str,
        make: Callable[[State], list[Change]],
        blobs: tuple[BlobRef, ...] = (),
        campaign: str = "",
    ) -> list[Change]:
        def draft(state: State) -> Draft | None:
            changes = make(state)
            if not changes:
                return None
            if not all(self._disk.exists(self._blobs.path(blob.digest)) for blob in blobs):
                raise _StateMovedError  # pruned between its publication and this lock
            news = tuple(blob for blob in blobs if blob.digest not in state.blobs)
            return Draft(note=self._committer.note(action, campaign), changes=tuple(changes), blobs=news)

        with self._committer.committing() as append:
            revision = append(draft)
        return list(revision.changes) if revision else []


def _entry(sample: Sample) -> Entry:
    return Entry(
        num_tokens=int(sample.scored.sum()),
        num_rows=len(sample),
        nll=sample.nll().hex(),
        digest=sample.digest(),
        blob=_NO_BLOB,
        row=0,
    )


def _groups(samples: Iterable[tuple[Key, Sample]], max_rows: int = MAX_ROWS) -> Iterator[Group]:
    """Groups of so many rows or so much time at most, each key once in a group."""
    group: dict[Key, Sample] = {}
    num_rows, started_s = 0, time.monotonic()
    for key, sample in samples:
        is_late = time.monotonic() - started_s > _MAX_GROUP_S
        if group and (num_rows + len(sample) > max_rows or key in group or is_late):
            yield list(group.items())
            group, num_rows, started_s = {}, 0, time.monotonic()
        group[key] = sample
        num_rows += len(sample)
    if group:
        yield list(group.items())
