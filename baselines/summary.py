"""Counts, sums and sizes of a store."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

from deepinfer.baselines.key import Key, Scope
from deepinfer.baselines.state import State, Table, entries
from deepinfer.baselines.store import Baselines


class ScopeSummary(NamedTuple):
    """One line of ``baseline status``; perplexity is over locked tokens, None when there are none."""

    scope: Scope
    num_locked: int
    num_pending: int
    num_tokens: int
    perplexity: float | None


class StoreSize(NamedTuple):
    """Bytes and files of a store; ``unused_bytes`` are those that ``prune`` would free."""

    num_revisions: int
    ledger_bytes: int
    num_blobs: int
    blob_bytes: int
    unused_bytes: int


def summarise(state: State, selected: Callable[[Key], bool] = lambda key: True) -> list[ScopeSummary]:
    """One summary for each scope that has a selected key, in the order in which scopes were first written."""
    found = []
    for scope in dict.fromkeys([*state.locked, *state.pending]):
        locked = [entry for name, entry in state.locked.get(scope, {}).items() if selected(Key(scope, name))]
        pending = sum(selected(Key(scope, name)) for name in state.pending.get(scope, {}))
        num_tokens = sum(entry.num_tokens for entry in locked)
        if locked or pending:
            nll = math.fsum(float.fromhex(entry.nll) for entry in locked)
            perplexity = math.exp(nll / num_tokens) if num_tokens else None
            found.append(ScopeSummary(scope, len(locked), pending, num_tokens, perplexity))
    return found


def canonical_digest(table: Table) -> str:
    """Hex sha256 of a table's content, whatever the order and the machines it came from."""
    total = hashlib.sha256(b"deepinfer-baselines/1\0")
    lines = sorted(
        f"{key.scope.platform}\0{key.scope.profile}\0{key.scope.model_digest}\0{key.scope.workload_digest}\0"
        f"{key.sample}\0{entry.digest}\0{entry.nll}\n"
        for key, entry in entries(table)
    )
    for line in lines:
        total.update(line.encode("utf-8"))
    return total.hexdigest()


def measure(store: Baselines) -> StoreSize:
    """Bytes that a store takes."""
    state = store.state()
    used = {entry.blob for table in (state.locked, state.pending) for _, entry in entries(table)}
    ledger = [path.stat().st_size for path in (store.root / "ledger").glob("*.jsonl")]
    blobs = list(state.blobs.values())
    return StoreSize(
        num_revisions=len(ledger),
        ledger_bytes=sum(ledger),
        num_blobs=len(blobs),
        blob_bytes=sum(blob.size_bytes for blob in blobs),
        unused_bytes=sum(blob.size_bytes for blob in blobs if blob.digest not in used),
    )
