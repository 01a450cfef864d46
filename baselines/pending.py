"""What lock, refresh, accept, reject and remove mean: from the newest state to the changes to publish.

Each function is called again when another writer was first, so it must depend on nothing but its arguments.
That is what makes a merge of many machines exact: what is already there is not written a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.baselines.errors import BaselineError, UnlockedError
from deepinfer.baselines.key import Key
from deepinfer.baselines.records import Change, Entry
from deepinfer.baselines.state import State


class AlreadyLockedError(BaselineError, ValueError):
    """``lock`` met a key that holds other bits; a refresh would show them for review."""


def lock_changes(state: State, found: Sequence[tuple[Key, Entry]]) -> list[Change]:
    """First entries; keys that hold these very bits are left alone.

    Raises:
        AlreadyLockedError: a key holds other bits.
    """
    changes = []
    for key, entry in found:
        locked = state.locked_entry(key)
        if locked is None:
            changes.append(Change("lock", key, entry))
        elif locked.digest != entry.digest:
            raise AlreadyLockedError(
                f"{key}: is locked with other bits already; run 'deepinfer baseline refresh', then review "
                "the diff"
            )
    return changes


def refresh_changes(state: State, found: Sequence[tuple[Key, Entry]], campaign: str) -> list[Change]:
    """Entries that differ from what is locked wait for review; those that agree clear what waited."""
    changes = []
    for key, entry in found:
        locked, waiting = state.locked_entry(key), state.pending_entry(key)
        is_news = bool(campaign) and key not in state.campaigns.get(campaign, ())
        if locked is not None and locked.digest == entry.digest:
            if waiting is not None or is_news:
                changes.append(Change("same", key))
        elif waiting is None or waiting.digest != entry.digest:
            changes.append(Change("pending", key, entry))
        elif is_news:
            changes.append(Change("seen", key))
    return changes


def accept_changes(state: State, keys: Sequence[Key]) -> list[Change]:
    """What waits becomes what is locked.

    Raises:
        UnlockedError: nothing waits for a key.
    """
    changes = []
    for key in keys:
        waiting = state.pending_entry(key)
        if waiting is None:
            raise UnlockedError(f"{key}: nothing waits for review; see 'deepinfer baseline status'")
        changes.append(Change("accept", key, waiting))
    return changes


def reject_changes(state: State, keys: Sequence[Key]) -> list[Change]:
    """What waits is dropped; what is locked stays.

    Raises:
        UnlockedError: nothing waits for a key.
    """
    for key in keys:
        if state.pending_entry(key) is None:
            raise UnlockedError(f"{key}: nothing waits for review; see 'deepinfer baseline status'")
    return [Change("reject", key) for key in keys]


def remove_changes(state: State, keys: Sequence[Key]) -> list[Change]:
    """The keys end; their history stays in the ledger."""
    return [Change("remove", key) for key in keys if state.locked_entry(key) or state.pending_entry(key)]
