"""Locked baselines of one folder: the way in for this package and for other projects.

from deepinfer.baselines.store import Baselines
outcome = Baselines(Path("baselines.lock")).check(key, token_ids, logprobs)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deepinfer.baselines.blobs import BlobFolder
from deepinfer.baselines.canonical import Sample, as_sample
from deepinfer.baselines.check import CheckStatus, KeyOutcome, compare_samples
from deepinfer.baselines.committing import Author, Committer
from deepinfer.baselines.disk import Disk
from deepinfer.baselines.errors import (
    BaselineError,
    DamagedError,
    NonFiniteLogprobError,
    StoreError,
    UnlockedError,
)
from deepinfer.baselines.fingerprint import moved_fields
from deepinfer.baselines.key import Key
from deepinfer.baselines.ledger import Ledger
from deepinfer.baselines.locks import LockConfig, LockKind, default_kind, require_kind_fits
from deepinfer.baselines.records import Change, Entry
from deepinfer.baselines.state import RevisionInfo, State, entries
from deepinfer.baselines.store_file import SCHEMA_VERSION, STORE_FILE, StoreFile, read_store_file
from deepinfer.baselines.writer import Writer


@dataclass(frozen=True, kw_only=True)
class LockOptions:
    """What a user may say about the lock of a store.

    Attributes:
        kind: class of lock for a store that is created now; None chooses by the mount.
        timeout_s: longest wait.
        stale_s: generation locks: seconds without renewal after which a holder may be replaced.
    """

    kind: LockKind | None = None
    timeout_s: float = 60.0
    stale_s: float = 90.0


class Baselines:
    """One store. Reading takes no lock and creates nothing; the state is read when first needed."""

    def __init__(
        self, root: Path | str, *, options: LockOptions | None = None, disk: Disk | None = None
    ) -> None:
        """Name a folder, which need not exist yet."""
        self.root = Path(root)
        self._options = options or LockOptions()
        self.disk = disk or Disk()
        self.ledger = Ledger(self.root, self.disk)
        self.blobs = BlobFolder(self.root / "blobs", self.root / "tmp", self.disk)
        self._is_read = False

    @property
    def exists(self) -> bool:
        """Whether the folder is a store."""
        with self._reading():
            return read_store_file(self.root, self.disk) is not None

    def state(self) -> State:
        """Everything that is locked and pending by now.

        Raises:
            UnlockedError: there is no store.
            DamagedError: the ledger is not what was published.
            BaselineError: another schema version, or a folder that cannot be read.
        """
        with self._reading():
            self.require_store()
            state = self.ledger.catch_up()
            self.ledger.require_head()
        self._is_read = True
        return state

    def require_store(self) -> StoreFile:
        """The store file.

        Raises:
            UnlockedError: there is no store.
        """
        found = read_store_file(self.root, self.disk)
        if found is None:
            raise UnlockedError(f"{self.root}: holds no baselines; lock them with 'deepinfer baseline lock'")
        return found

    def check(
        self,
        key: Key,
        token_ids: Any,
        logprobs: Any,
        scored: Any = None,
        provenance: Mapping[str, str] | None = None,
    ) -> KeyOutcome:
        """Compare one sample with what is locked for it, byte by byte. Never writes.

        The state is read once; call `state` to see what was published since.

        Args:
            key: sample, platform, workload, model and profile.
            token_ids: [S] integers.
            logprobs: [S] float32, natural logarithm.
            scored: [S] bool, see ``canonical.as_sample``.
            provenance: what is in use now; a difference then names the fields that moved.

        Raises:
            UnlockedError: there is no store, or its ledger is damaged.
            InvalidSampleError: arrays that cannot be a sample.
        """
        try:
            present = as_sample(token_ids, logprobs, scored)
        except NonFiniteLogprobError as error:
            return KeyOutcome(key=key, status=CheckStatus.INCONCLUSIVE, reason=str(error))
        state = self.ledger.state if self._is_read else self.state()
        entry = state.locked_entry(key)
        if entry is None:
            what = "only waits for review" if state.pending_entry(key) else "is not locked"
            return KeyOutcome(key=key, status=CheckStatus.MISSING, reason=f"{what} in {self.root}")
        try:
            locked = self.sample(key, entry)
        except DamagedError as error:
            return KeyOutcome(key=key, status=CheckStatus.DAMAGED, reason=str(error))
        moved = {} if provenance is None else moved_fields(state.note_of(entry).provenance, provenance)
        return compare_samples(key, locked, present, moved)

    def sample(self, key: Key, entry: Entry) -> Sample:
        """The arrays that an entry stands for, checked against its digest.

        Raises:
            DamagedError: the blob or the entry is not what was published.
        """
        ref = self.ledger.state.blobs.get(entry.blob)
        if ref is None:
            raise DamagedError(str(self.blobs.path(entry.blob)), f"was pruned, and {key} still needs it")
        try:
            found = self.blobs.rows(ref, entry.row, entry.num_rows)
        except OSError as error:
            raise self._refused(error) from error
        if found.digest() != entry.digest:
            raise DamagedError(str(key), "its rows do not have the digest that was locked")
        return found

    def lock(self, key: Key, token_ids: Any, logprobs: Any, *, scored: Any = None, reason: str = "") -> bool:
        """Lock one sample for the first time; False when these very bits are locked already.

        Raises:
            AlreadyLockedError: other bits are locked for the key.
            NonFiniteLogprobError: a scored value is NaN or infinite.
        """
        writer = self.writer(Author(reason=reason))
        return bool(writer.lock([(key, as_sample(token_ids, logprobs, scored))]))

    def orphans(self, present: Iterable[Key]) -> list[Key]:
        """Locked keys that nobody asked about, of the platforms, models and workloads that were asked for."""
        asked = set(present)
        families = {key.scope.family for key in asked}
        locked = (key for key, _ in entries(self.ledger.state.locked))
        return [key for key in locked if key.scope.family in families and key not in asked]

    def writer(self, author: Author) -> Writer:
        """A writer; creates the store if need be.

        Raises:
            LockError: the store's kind of lock means nothing on this mount.
            StoreError: the folder cannot be written.
            BaselineError: the store is of an earlier schema version.
        """
        with self._reading():
            store_file = read_store_file(self.root, self.disk) or self._create()
        if store_file.version < SCHEMA_VERSION or store_file.lock_kind is None:
            raise BaselineError(
                f"{self.root}: is of schema version {store_file.version}; run 'deepinfer baseline upgrade' "
                "before "
                "writing (reading works)"
            )
        require_kind_fits(store_file.lock_kind, self.root)
        lock = LockConfig(
            kind=store_file.lock_kind, timeout_s=self._options.timeout_s, stale_s=self._options.stale_s
        )
        committer = Committer(self.root, self.ledger, self.disk, lock, author)
        return Writer(committer, self.ledger, self.blobs, self.disk)

    def history(self) -> Iterator[tuple[RevisionInfo, tuple[Change, ...]]]:
        """Every revision from the first on with its changes, read again from the files."""
        with self._reading():
            self.require_store()
            fresh = Ledger(self.root, self.disk)
            for revision in fresh.revisions():
                yield fresh.state.revisions[-1], revision.changes

    def with_options(self, **changes: Any) -> Baselines:
        """The same folder with other lock options."""
        return Baselines(self.root, options=replace(self._options, **changes), disk=self.disk)

    def _create(self) -> StoreFile:
        strangers = [name for name in self.disk.names(self.root) if name not in ("locks", "tmp")]
        if strangers:
            raise BaselineError(
                f"{self.root}: is not a store of baselines (it holds {strangers[0]!r}, no {STORE_FILE}); "
                "name another"
            )
        wanted = StoreFile(
            version=SCHEMA_VERSION, lock_kind=self._options.kind or default_kind(self.root.absolute())
        )
        self.disk.make_folder(self.root)
        self.disk.publish(self.root / STORE_FILE, wanted.encode(), self.root / "tmp")
        return self.require_store()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except BaselineError:
            raise
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StoreError:
        where = error.filename or self.root
        return StoreError(f"{where}: the system refused ({error.strerror or error}); check the folder")
