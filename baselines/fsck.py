"""Everything recomputed: the chain line by line, every blob byte by byte, every entry from its rows."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepinfer.baselines.blobs import DecodedBlob, decode
from deepinfer.baselines.canonical import Sample
from deepinfer.baselines.errors import BaselineError, DamagedError
from deepinfer.baselines.key import Key
from deepinfer.baselines.ledger import Ledger
from deepinfer.baselines.records import Entry
from deepinfer.baselines.state import State, entries
from deepinfer.baselines.store import Baselines

_LEFTOVER_AGE_S = 3600.0


@dataclass(kw_only=True)
class FsckReport:
    """What fsck found.

    Attributes:
        problems: damage, the first bad record first; empty for a sound store.
        recovered: what was wrong and could be restored from the chain.
        notices: harmless things worth knowing.
        num_revisions: revisions whose chain holds.
        num_entries: entries whose rows were recomputed, locked and pending.
        num_blobs: blobs whose bytes were recomputed.
    """

    problems: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    num_revisions: int = 0
    num_entries: int = 0
    num_blobs: int = 0

    @property
    def exit_code(self) -> int:
        """3 (*unlocked*) when something is damaged."""
        return 3 if self.problems else 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"exit_code": self.exit_code, **self.__dict__}


def check_store(store: Baselines, *, repair: bool = True) -> FsckReport:
    """Recompute a whole store.

    Args:
        store: the store.
        repair: write HEAD anew when the chain says more than it, and remove temporary files of writers that
            were killed more than an hour ago. Nothing else is ever written.

    Raises:
        UnlockedError: there is no store.
        StoreError: the folder cannot be read.
    """
    report = FsckReport()
    try:
        store.require_store()
    except DamagedError as error:
        report.problems.append(_line(error))
    except BaselineError as error:
        report.problems.append(str(error))
        return report
    ledger = Ledger(store.root, store.disk)
    try:
        ledger.catch_up()
    except DamagedError as error:
        report.problems.append(_line(error))
    report.num_revisions = ledger.state.number
    _check_names(store, ledger, report)
    if not report.problems:
        _check_head(ledger, report, repair)
    _check_blobs(store, ledger.state, report)
    _check_leftovers(store, report, repair)
    return report


def _check_names(store: Baselines, ledger: Ledger, report: FsckReport) -> None:
    """A gap hides every revision after it."""
    folder = store.root / "ledger"
    names = store.disk.names(folder)
    beyond = [name for name in names if name > ledger.path(ledger.state.number).name]
    following = ledger.path(ledger.state.number + 1)
    if beyond and following.name not in names:
        report.problems.append(f"{following}: is missing, and {beyond[0]} comes after it")


def _check_head(ledger: Ledger, report: FsckReport, repair: bool) -> None:
    try:
        head = ledger.read_head()
    except DamagedError as error:
        _restore_head(ledger, report, repair, _line(error))
        return
    if head is None:
        if ledger.state.number:
            _restore_head(ledger, report, repair, "HEAD: is missing")
    elif not ledger.holds(head):
        report.problems.append(
            f"{ledger.path(head.revision)}: HEAD says that it was published; it is gone, or it is another now"
        )
    elif head.revision < ledger.state.number:
        _restore_head(
            ledger,
            report,
            repair,
            f"HEAD: says {head.revision}, a writer ended between publishing and saying so",
        )


def _restore_head(ledger: Ledger, report: FsckReport, repair: bool, what: str) -> None:
    done = "run fsck without --dry-run to restore it"
    if repair:
        try:
            ledger.write_head()
            done = f"recovered from the chain, which ends at revision {ledger.state.number}"
        except OSError as error:
            done = f"could not be written anew ({error.strerror or error})"
    report.recovered.append(f"{what}; {done}")


def _check_blobs(store: Baselines, state: State, report: FsckReport) -> None:
    """Bytes, content name, and the digest and sum of every entry that points into the blob."""
    wanted: dict[str, list[tuple[Key, Entry]]] = {digest: [] for digest in state.blobs}
    for table in (state.locked, state.pending):
        for key, entry in entries(table):
            wanted.setdefault(entry.blob, []).append((key, entry))
    for digest, users in wanted.items():
        path = store.blobs.path(digest)
        ref = state.blobs.get(digest)
        if ref is None:
            report.problems.append(f"{path}: was pruned, and {users[0][0]} still needs it")
            continue
        try:
            columns = decode(store.blobs.read_verified(ref), path, digest)
        except DamagedError as error:
            report.problems.append(_line(error))
            continue
        report.num_blobs += 1
        for key, entry in users:
            reason = _entry_fault(entry, columns)
            report.num_entries += 1
            if reason:
                report.problems.append(f"{key}: {reason} (rows {entry.row} on of {path})")
    known = {path.name for path in (store.blobs.path(digest) for digest in state.blobs)}
    files = [path for path in (store.root / "blobs").glob("*/*") if path.name not in known]
    if files:
        report.notices.append(
            f"{len(files)} blobs that no revision names; 'baseline prune' does not need them"
        )


def _entry_fault(entry: Entry, columns: DecodedBlob) -> str:
    rows = slice(entry.row, entry.row + entry.num_rows)
    sample = Sample(token_ids=columns.token_ids[rows], logprobs=columns.logprobs[rows])
    if len(sample) != entry.num_rows:
        return "its rows reach beyond the blob"
    if sample.digest() != entry.digest:
        return "its rows do not have the digest that was locked"
    if sample.nll().hex() != entry.nll or int(sample.scored.sum()) != entry.num_tokens:
        return "its sum or its token count is not that of its rows"
    return ""


def _check_leftovers(store: Baselines, report: FsckReport, repair: bool) -> None:
    folder = store.root / "tmp"
    left = [folder / name for name in store.disk.names(folder)]
    removed = 0
    for path in left if repair else []:
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFTOVER_AGE_S:
                store.disk.unlink(path)
                removed += 1
    if left:
        report.notices.append(
            f"{len(left)} temporary files of ended writers, {removed} removed: {_first(left)}"
        )


def _first(paths: list[Path]) -> str:
    return paths[0].name


def _line(error: DamagedError) -> str:
    return f"{error.record}: {error.reason}"
