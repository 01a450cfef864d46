"""What waits for review beside what is locked: how far it moved, where first, and what moved with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer.baselines.canonical import Sample
from deepinfer.baselines.check import KeyOutcome, compare_samples
from deepinfer.baselines.errors import DamagedError
from deepinfer.baselines.fingerprint import moved_fields
from deepinfer.baselines.key import Key, Scope
from deepinfer.baselines.records import Entry
from deepinfer.baselines.state import State, entries
from deepinfer.baselines.store import Baselines
from deepinfer.eval.stats import ClusteredMean, clustered_mean

_NO_DELTA: npt.NDArray[np.float64] = np.zeros(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyDiff:
    """One key that waits for review.

    Attributes:
        key: the key.
        locked: the accepted entry; None for a key that is new.
        pending: the entry that waits.
        outcome: the comparison of the two; None for a key that is new or cannot be read.
        delta: [T] nats per token, pending minus locked NLL, over positions scored in both.
        note: who refreshed, when and why; or what cannot be read.
    """

    key: Key
    locked: Entry | None
    pending: Entry
    outcome: KeyOutcome | None
    delta: npt.NDArray[np.float64]
    note: str

    @property
    def delta_nll(self) -> float | None:
        """Nats of the sample, pending minus locked; None for a key that is new."""
        if self.locked is None:
            return None
        return float.fromhex(self.pending.nll) - float.fromhex(self.locked.nll)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        first = self.outcome.first if self.outcome else None
        return {
            "key": str(self.key),
            "is_new": self.locked is None,
            "nll_locked": self.locked and float.fromhex(self.locked.nll),
            "nll_pending": float.fromhex(self.pending.nll),
            "delta_nll": self.delta_nll,
            "num_different": self.outcome.num_different if self.outcome else None,
            "max_ulp": self.outcome.max_ulp if self.outcome else None,
            "first_difference": None if first is None else {**first.__dict__},
            "moved": dict(self.outcome.moved) if self.outcome else {},
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True)
class ScopeDiff:
    """All changed samples of one platform, model and workload, compared in pairs.

    Attributes:
        scope: what they share.
        num_samples: samples compared, those that did not move included.
        perplexity_locked: over all locked samples.
        perplexity_pending: with what waits in the place of what is locked.
        delta: nats per token with its error clustered by sample; None when nothing was scored in both.
    """

    scope: Scope
    num_samples: int
    perplexity_locked: float
    perplexity_pending: float
    delta: ClusteredMean | None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        delta = self.delta
        return {
            "scope": str(self.scope),
            "num_samples": self.num_samples,
            "perplexity_locked": self.perplexity_locked,
            "perplexity_pending": self.perplexity_pending,
            "delta_nats_per_token": delta and delta.mean,
            "standard_error": delta and delta.standard_error,
            "z": delta and delta.z_score,
        }


@dataclass(frozen=True, kw_only=True)
class DiffReport:
    """Everything that waits for review.

    Attributes:
        keys: key by key, the largest change first.
        scopes: run by run.
    """

    keys: tuple[KeyDiff, ...]
    scopes: tuple[ScopeDiff, ...]

    @property
    def exit_code(self) -> int:
        """1 (*different*) when something waits."""
        return 1 if self.keys else 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "exit_code": self.exit_code,
            "scopes": [scope.to_dict() for scope in self.scopes],
            "keys": [key.to_dict() for key in self.keys],
        }


def diff_pending(store: Baselines, keys: Sequence[Key]) -> DiffReport:
    """Compare what waits for the given keys with what is locked for them."""
    state = store.state()
    diffs = [_diff_key(store, state, key) for key in keys]
    diffs.sort(key=lambda diff: -abs(diff.delta_nll or math.inf))
    scopes = dict.fromkeys(diff.key.scope for diff in diffs)
    return DiffReport(
        keys=tuple(diffs),
        scopes=tuple(found for scope in scopes if (found := _diff_scope(state, scope, diffs))),
    )


def _diff_key(store: Baselines, state: State, key: Key) -> KeyDiff:
    pending, locked = state.pending_entry(key), state.locked_entry(key)
    assert pending is not None, "only keys that wait are asked for"
    then = state.note_of(pending)
    note = f"{then.who} on {then.host} at {then.time}" + (f": {then.reason}" if then.reason else "")
    outcome, delta = None, _NO_DELTA
    if locked is not None:
        try:
            before, after = store.sample(key, locked), store.sample(key, pending)
        except DamagedError as error:
            return KeyDiff(
                key=key, locked=locked, pending=pending, outcome=None, delta=_NO_DELTA, note=str(error)
            )
        moved = moved_fields(state.note_of(locked).provenance, then.provenance)
        outcome, delta = compare_samples(key, before, after, moved), _token_deltas(before, after)
    return KeyDiff(key=key, locked=locked, pending=pending, outcome=outcome, delta=delta, note=note)


def _token_deltas(before: Sample, after: Sample) -> npt.NDArray[np.float64]:
    if len(before) != len(after):
        return _NO_DELTA
    both = before.scored & after.scored
    return before.logprobs[both].astype(np.float64) - after.logprobs[both].astype(np.float64)


def _diff_scope(state: State, scope: Scope, diffs: Sequence[KeyDiff]) -> ScopeDiff | None:
    """Paired figures over all locked samples of the scope; those that nothing waits for did not move."""
    changed = {diff.key: diff for diff in diffs if diff.locked is not None and len(diff.delta)}
    locked = [(key, entry) for key, entry in entries(state.locked) if key.scope == scope and entry.num_tokens]
    if not locked:
        return None
    sums = [math.fsum(changed[key].delta.tolist()) if key in changed else 0.0 for key, _ in locked]
    counts = [entry.num_tokens for _, entry in locked]
    before = [float.fromhex(entry.nll) for _, entry in locked]
    after = [float.fromhex((changed[key].pending if key in changed else entry).nll) for key, entry in locked]
    return ScopeDiff(
        scope=scope,
        num_samples=len(locked),
        perplexity_locked=math.exp(math.fsum(before) / sum(counts)),
        perplexity_pending=math.exp(math.fsum(after) / sum(counts)),
        delta=clustered_mean(sums, counts),
    )
