"""What the ledger says now: its revisions folded, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from deepinfer.baselines.blobs import BlobRef
from deepinfer.baselines.key import Key, Scope
from deepinfer.baselines.records import GENESIS, Change, Entry, Note, Revision

MAX_CAMPAIGNS = 8
"""Sharded refreshes whose progress is remembered; older ones are over."""

Table = dict[Scope, dict[str, Entry]]


class RevisionInfo(NamedTuple):
    """What is kept of a revision once it is folded."""

    number: int
    generation: int
    note: Note
    num_changes: int
    last_hash: str


@dataclass(kw_only=True)
class State:
    """The fold of a ledger.

    Attributes:
        locked: scope -> sample -> accepted entry.
        pending: scope -> sample -> entry that waits for review.
        campaigns: campaign -> keys that its shards have settled, of the newest campaigns.
        blobs: content name -> blob, of blobs whose files exist.
        revisions: all of them, in order.
        generation: fencing generation of the newest writer.
    """

    locked: Table = field(default_factory=dict)
    pending: Table = field(default_factory=dict)
    campaigns: dict[str, set[Key]] = field(default_factory=dict)
    blobs: dict[str, BlobRef] = field(default_factory=dict)
    revisions: list[RevisionInfo] = field(default_factory=list)
    generation: int = 0

    @property
    def number(self) -> int:
        """Number of the newest revision; 0 for an empty ledger."""
        return len(self.revisions)

    @property
    def last_hash(self) -> str:
        """What the next revision chains to."""
        return self.revisions[-1].last_hash if self.revisions else GENESIS

    def locked_entry(self, key: Key) -> Entry | None:
        """The accepted entry of a key."""
        return self.locked.get(key.scope, {}).get(key.sample)

    def pending_entry(self, key: Key) -> Entry | None:
        """The entry of a key that waits for review."""
        return self.pending.get(key.scope, {}).get(key.sample)

    def note_of(self, entry: Entry) -> Note:
        """Who, when, why and with what an entry was written."""
        return self.revisions[entry.revision - 1].note

    def apply(self, revision: Revision) -> None:
        """Fold the next revision.

        Raises:
            ValueError: a change that no writer makes, such as accepting what was never pending.
        """
        assert revision.number == self.number + 1, "revisions are folded in order"
        if revision.generation < self.generation:
            raise ValueError(f"generation {revision.generation} is older than {self.generation}")
        for blob in revision.blobs:
            self.blobs.setdefault(blob.digest, blob)
        for digest in revision.removed_blobs:
            self.blobs.pop(digest, None)
        settled = self._settled_by(revision.note.campaign)
        scope: Scope | None = None
        locked: dict[str, Entry] = {}
        pending: dict[str, Entry] = {}
        for change in revision.changes:
            if change.key.scope is not scope:
                scope = change.key.scope
                locked = self.locked.setdefault(scope, {})
                pending = self.pending.setdefault(scope, {})
            self._apply_change(change, locked, pending)
            if settled is not None:
                settled.add(change.key)
        self.generation = revision.generation
        self.revisions.append(
            RevisionInfo(
                revision.number,
                revision.generation,
                revision.note,
                len(revision.changes),
                revision.last_hash,
            )
        )

    def _settled_by(self, campaign: str) -> set[Key] | None:
        if not campaign:
            return None
        settled = self.campaigns.setdefault(campaign, set())
        while len(self.campaigns) > MAX_CAMPAIGNS:
            del self.campaigns[next(iter(self.campaigns))]
        return settled

    def _apply_change(self, change: Change, locked: dict[str, Entry], pending: dict[str, Entry]) -> None:
        """Fold one change into the tables of its scope."""
        kind, key, entry = change
        if (entry is not None) != (kind in ("lock", "pending", "accept")):
            raise ValueError(f"{kind} of {key} must {'' if entry is None else 'not '}have an entry")
        if entry is not None and entry.blob not in self.blobs:
            raise ValueError(f"{kind} of {key} points into a blob that the ledger does not know")
        if kind == "pending" and entry is not None:
            pending[key.sample] = entry
        elif kind == "lock" and entry is not None:
            if key.sample in locked:
                raise ValueError(f"{key} is locked a second time")
            locked[key.sample] = entry
            pending.pop(key.sample, None)
        elif kind == "accept" and entry is not None:
            waiting = pending.pop(key.sample, None)
            if waiting is None or waiting.digest != entry.digest:
                raise ValueError(f"{key} is accepted with another content than was pending")
            locked[key.sample] = entry
        elif kind == "seen":
            pass
        elif kind in ("same", "reject"):
            pending.pop(key.sample, None)
        elif kind == "remove":
            locked.pop(key.sample, None)
            pending.pop(key.sample, None)
        else:
            raise ValueError(f"{kind!r} of {key} is no change that this version knows")


def entries(table: Table) -> Iterator[tuple[Key, Entry]]:
    """All entries of a table, scope by scope, in the order in which they were first written."""
    for scope, samples in table.items():
        for sample, entry in samples.items():
            yield Key(scope, sample), entry
