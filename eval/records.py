"""Run folders: what was asked, shards of what was answered, and a manifest that says it is complete.

    RUN/run.json                       the question: configuration and samples; written first
    RUN/shard-NNNNN-DIGEST.parquet     finished samples; written once, never changed
    RUN/manifest.json                  shards, digests and result; written last
    RUN/.lock                          held while a process writes

A kill at any instant leaves whole shards only; the same command continues with the samples no shard holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from deepinfer.engine.errors import RunError
from deepinfer.eval.environment import describe_environment
from deepinfer.eval.publish import (
    TEMPORARY_PREFIX,
    canonical_json,
    digest_of,
    publish_bytes,
    publish_json,
    read_sealed_json,
)
from deepinfer.eval.shard_file import SampleOutcome, encode_shard, read_shard, shard_name

RUN_FORMAT = "deepinfer-run/1"
DEFAULT_SHARD_ROWS = 8192


class RunBusyError(RunError):
    """Another process writes this run folder; exit code 4 (*lock*)."""

    exit_code = 4


@dataclass(frozen=True, kw_only=True)
class RunHeader:
    """The question a run answers; two runs with equal headers are the same run.

    Attributes:
        kind: ``score`` or ``eval``.
        configuration: everything that may move a bit of the rows, as JSON values.
        samples: ``{sample_id, workload, num_ids}`` of every sample, in order.
    """

    kind: str
    configuration: dict[str, Any]
    samples: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """The content of ``run.json``."""
        return {
            "format": RUN_FORMAT,
            "kind": self.kind,
            "configuration": self.configuration,
            "samples": list(self.samples),
        }

    @property
    def digest(self) -> str:
        """Hex sha256; every shard carries it."""
        return digest_of(canonical_json(self.to_dict()))


class RunWriter:
    """Writes one run folder, or continues it. Use as a context manager: the lock is held inside.

    Attributes:
        outcomes: every sample that is finished, in memory; after opening, those the folder already holds.
    """

    def __init__(self, path: Path, header: RunHeader, shard_rows: int = DEFAULT_SHARD_ROWS) -> None:
        """Name folder and question; nothing is touched before the block is entered."""
        self.path = path
        self.outcomes: dict[str, SampleOutcome] = {}
        self._header = header
        self._shard_rows = shard_rows
        self._pending: list[SampleOutcome] = []
        self._shards: list[dict[str, Any]] = []
        self._environment = describe_environment()
        self._environments: list[dict[str, Any]] = []
        self._lock = FileLock(path / ".lock", timeout=0, fallback_to_soft=False)

    def __enter__(self) -> Self:
        """Take the lock, check or write the question, read the shards that are there.

        Raises:
            RunBusyError: another process holds the folder.
            RunError: another question, a damaged shard, a folder that is no run or cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_foreign_folder()
            self._lock.acquire()
        except Timeout as error:
            raise RunBusyError(
                f"{self.path}: another process writes this run; wait for it or name another folder"
            ) from error
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot write there ({error.strerror or error}); "
                "choose another folder with --out"
            ) from error
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store what is finished, unless the block failed on writing, and release the lock."""
        try:
            if kind is None or not issubclass(kind, RunError):
                self.flush()
        finally:
            self._lock.release()

    @property
    def is_complete(self) -> bool:
        """The manifest is there: nothing is left to do."""
        return (self.path / "manifest.json").exists()

    def add(self, outcome: SampleOutcome) -> None:
        """Take a finished sample; it is stored with its group, at the latest when the block ends."""
        assert outcome.sample_id not in self.outcomes, "a finished sample is not scored again"
        self.outcomes[outcome.sample_id] = outcome
        self._pending.append(outcome)
        if sum(pending.num_rows for pending in self._pending) >= self._shard_rows:
            self.flush()

    def flush(self) -> None:
        """Publish the samples that are finished but not stored as one shard."""
        if not self._pending:
            return
        content = encode_shard(self._pending, {"run": self._header.digest, "environment": self._environment})
        name = shard_name(len(self._shards), content)
        publish_bytes(self.path / name, content)
        self._note_shard(name, self._pending, self._environment)
        self._pending = []

    def finish(self, result: dict[str, Any]) -> None:
        """Write the manifest: the run is complete. Every sample must have been added.

        Raises:
            RunError: samples are missing, or the folder cannot be written.
        """
        self.flush()
        missing = [s["sample_id"] for s in self._header.samples if s["sample_id"] not in self.outcomes]
        if missing:
            raise RunError(
                f"{self.path}: {len(missing)} samples are not scored, first {missing[0]!r}; run again"
            )
        publish_json(
            self.path / "manifest.json",
            {
                **self._header.to_dict(),
                "samples": [self._sample_entry(sample) for sample in self._header.samples],
                "shards": sorted(self._shards, key=lambda shard: str(shard["file"])),
                "environments": self._environments,
                "canonical_digest": canonical_digest(self.outcomes),
                "result": result,
            },
        )

    def _sample_entry(self, sample: dict[str, Any]) -> dict[str, Any]:
        outcome = self.outcomes[sample["sample_id"]]
        return {
            **sample,
            "status": "failed" if outcome.failure else "scored",
            "reason": outcome.failure,
            "digests": {rows.policy: rows.digest for rows in outcome.rows},
        }

    def _refuse_foreign_folder(self) -> None:
        """A folder with other people's files in it is not taken over."""
        names = {entry.name for entry in self.path.iterdir()}
        strangers = sorted(n for n in names if n != ".lock" and not n.startswith(TEMPORARY_PREFIX))
        if strangers and "run.json" not in names:
            raise RunError(
                f"{self.path}: is not a run folder (it holds {strangers[0]!r}); choose another with --out"
            )

    def _open(self) -> None:
        for leftover in self.path.glob(TEMPORARY_PREFIX + "*"):
            leftover.unlink()  # its writer was killed: we hold the lock, so no one is writing it
        question = self.path / "run.json"
        if question.exists():
            refuse_other_question(self.path, read_sealed_json(question), self._header.to_dict())
        else:
            publish_json(question, self._header.to_dict())
        for shard in sorted(self.path.glob("shard-*.parquet")):
            outcomes, note = read_shard(shard)
            if note.get("run") != self._header.digest:
                raise RunError(f"{shard}: belongs to another run; move it away")
            collect_outcomes(shard, outcomes, self.outcomes)
            self._note_shard(shard.name, outcomes, note["environment"])
        if self.is_complete:
            manifest = read_sealed_json(self.path / "manifest.json")
            if manifest["canonical_digest"] != canonical_digest(self.outcomes):
                raise RunError(
                    f"{self.path}: the shards are not those of the manifest; run into a new folder"
                )

    def _note_shard(self, name: str, outcomes: list[SampleOutcome], environment: dict[str, Any]) -> None:
        self._shards.append({"file": name, "rows": sum(outcome.num_rows for outcome in outcomes)})
        if environment not in self._environments:
            self._environments.append(environment)


def collect_outcomes(shard: Path, outcomes: list[SampleOutcome], into: dict[str, SampleOutcome]) -> None:
    """Add a shard's samples to those of earlier shards; a sample in two shards is a :class:`RunError`."""
    for outcome in outcomes:
        if outcome.sample_id in into:
            raise RunError(
                f"{shard}: sample {outcome.sample_id!r} is in another shard too; run into a new folder"
            )
        into[outcome.sample_id] = outcome


def canonical_digest(outcomes: dict[str, SampleOutcome]) -> str:
    """Hex sha256 of a run's content whatever the order of its samples, its shards or its interruptions."""
    entries = [
        [outcome.sample_id, outcome.failure, sorted([rows.policy, rows.digest] for rows in outcome.rows)]
        for outcome in sorted(outcomes.values(), key=lambda outcome: outcome.sample_id)
    ]
    return digest_of(canonical_json(entries))


def refuse_other_question(path: Path, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise a :class:`RunError` that names the first thing in which two run headers differ."""
    if stored == wanted:
        return
    for section in (stored.get("configuration", {}), wanted["configuration"]):
        for key in section:
            old, new = stored.get("configuration", {}).get(key), wanted["configuration"].get(key)
            if old != new:
                raise RunError(
                    f"{path}: holds a run of another configuration ({key}: {old!r} there, {new!r} now); "
                    "choose another folder with --out"
                )
    raise RunError(f"{path}: holds a run of other samples; choose another folder with --out")
