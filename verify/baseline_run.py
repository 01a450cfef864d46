"""Baseline work that needs the model: checking what is locked, locking, refreshing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deepinfer.baselines.blobs import MAX_ROWS
from deepinfer.baselines.check import CheckStatus, KeyOutcome, worst_exit_code
from deepinfer.baselines.committing import Author
from deepinfer.baselines.key import Key
from deepinfer.baselines.records import Change
from deepinfer.baselines.selection import Selection, shard_of
from deepinfer.baselines.store import Baselines
from deepinfer.engine.errors import InputError
from deepinfer.eval.baseline_scores import lockable, score_samples
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.provenance import provenance_of
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.runner import Progress, ignore_progress
from deepinfer.eval.scoring_plan import PlannedSample, ScoringPlan, plan_samples


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a check of many keys found.

    Attributes:
        outcomes: one a key, in the order of the plans, orphans last.
        num_rows: rows compared.
        store: the store, as text.
        is_required: whether missing and orphaned keys count.
    """

    outcomes: tuple[KeyOutcome, ...]
    num_rows: int
    store: str
    is_required: bool = True

    @property
    def counts(self) -> dict[CheckStatus, int]:
        """Keys by status."""
        statuses = [outcome.status for outcome in self.outcomes]
        return {status: statuses.count(status) for status in CheckStatus if status in statuses}

    @property
    def exit_code(self) -> int:
        """The worst code of the keys that count."""
        lenient = () if self.is_required else (CheckStatus.MISSING, CheckStatus.ORPHAN)
        return worst_exit_code({status: n for status, n in self.counts.items() if status not in lenient})

    def worst(self) -> list[KeyOutcome]:
        """What is not the same, differences first, then the largest distance."""
        order = list(CheckStatus)
        wrong = [outcome for outcome in self.outcomes if not outcome.is_same]
        return sorted(wrong, key=lambda outcome: (order.index(outcome.status), -outcome.max_ulp))


@dataclass(frozen=True, kw_only=True)
class WriteReport:
    """What a lock or a refresh published.

    Attributes:
        store: the store, as text.
        num_keys: keys scored.
        changes: what was published, by kind.
        pending: keys that wait for review because of it.
        num_settled: keys that an earlier, interrupted run of the same campaign had settled.
    """

    store: str
    num_keys: int
    changes: dict[str, int] = field(default_factory=dict)
    pending: tuple[str, ...] = ()
    num_settled: int = 0

    @property
    def exit_code(self) -> int:
        """1 (*different*) when something now waits for review: a refresh that wrote is never green."""
        return 1 if self.pending else 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"exit_code": self.exit_code, **self.__dict__, "pending": list(self.pending)}


def select_samples(
    scorer: Scorer, plans: tuple[ScoringPlan, ...], selection: Selection
) -> list[PlannedSample]:
    """The planned samples that a selection matches.

    Raises:
        InputError: a plan that cannot be used, or a selection that matches nothing.
    """
    planned = plan_samples(scorer, plans)
    chosen = [item for item in planned if selection.matches(item.key)]
    if not chosen:
        raise InputError(f"nothing is selected among {len(planned)} samples, such as {planned[0].key}")
    return chosen


def check_samples(
    scorer: Scorer,
    store: Baselines,
    planned: Sequence[PlannedSample],
    progress: Progress = ignore_progress,
    selection: Selection | None = None,
    is_required: bool = True,
    asked: Sequence[PlannedSample] = (),
) -> tuple[CheckReport, dict[Key, SampleRows]]:
    """Score samples and compare each with what is locked; orphans of the same families are listed too.

    Args:
        asked: samples that are no orphans although they are not scored this time.

    Returns:
        The report, and the rows by key, for tolerance mode.

    Raises:
        UnlockedError: there is no store, or its ledger is damaged.
        InputError: the engine refuses a sample.
    """
    store.state()
    provenance = provenance_of(scorer.config)
    outcomes: list[KeyOutcome] = []
    rows_of: dict[Key, SampleRows] = {}
    for key, rows in score_samples(scorer, planned, progress):
        rows_of[key] = rows
        outcomes.append(store.check(key, rows.token_id, rows.logprob, rows.valid, provenance))
    known = {*rows_of, *(item.key for item in asked)}
    orphans = [key for key in store.orphans(known) if selection is None or selection.matches(key)]
    outcomes += [
        KeyOutcome(key=key, status=CheckStatus.ORPHAN, reason="is locked, and no text asks for it")
        for key in orphans
    ]
    report = CheckReport(
        outcomes=tuple(outcomes),
        num_rows=sum(outcome.num_rows for outcome in outcomes),
        store=str(store.root),
        is_required=is_required,
    )
    return report, rows_of


def lock_samples(
    scorer: Scorer,
    store: Baselines,
    planned: Sequence[PlannedSample],
    author: Author,
    progress: Progress = ignore_progress,
) -> WriteReport:
    """Lock samples for the first time.

    Raises:
        AlreadyLockedError: a key holds other bits.
        NonFiniteLogprobError: a scored value is NaN or infinite.
        LockError, StoreError: what is said; nothing half-written.
    """
    changes = store.writer(author).lock(lockable(score_samples(scorer, planned, progress)))
    return WriteReport(store=str(store.root), num_keys=len(planned), changes=_count(changes))


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a refresh.

    Attributes:
        index: 1 to ``count``.
        count: how many there are.
        run: name of the refresh, the same for all shards and for a restart; empty when it has none, and a
            restart then scores everything again (the result is the same).
    """

    index: int = 1
    count: int = 1
    run: str = ""

    @property
    def campaign(self) -> str:
        """What the ledger calls it."""
        return self.run and f"{self.run}/{self.count}"


def refresh_samples(
    scorer: Scorer,
    store: Baselines,
    planned: Sequence[PlannedSample],
    author: Author,
    shard: Shard,
    progress: Progress = ignore_progress,
    group_rows: int = MAX_ROWS,
) -> WriteReport:
    """Score a shard's samples and put what differs from the locked bits up for review.

    Samples that this campaign has settled already are not scored again.

    Raises:
        NonFiniteLogprobError: a scored value is NaN or infinite.
        LockError, StoreError: what is said; groups published before stay, and a restart goes on from them.
    """
    writer = store.writer(author)
    settled = store.state().campaigns.get(shard.campaign, set())
    mine = [item for index, item in enumerate(planned) if shard_of(index, (shard.index, shard.count))]
    todo = [item for item in mine if item.key not in settled]
    with writer.working(f"refresh-{shard.index}-of-{shard.count}"):
        scores = lockable(score_samples(scorer, todo, progress))
        changes = writer.refresh(scores, shard.campaign, group_rows)
    waiting = store.state()
    pending = [str(item.key) for item in mine if waiting.pending_entry(item.key)]
    return WriteReport(
        store=str(store.root),
        num_keys=len(mine),
        changes=_count(changes),
        pending=tuple(pending),
        num_settled=len(mine) - len(todo),
    )


def author_of(scorer: Scorer, reason: str, command: str) -> Author:
    """An author whose provenance is what the scorer really uses."""
    return Author(reason=reason, command=command, provenance=provenance_of(scorer.config))


def shard_from_environment(environment: Mapping[str, str]) -> Shard | None:
    """The shard that a launcher assigned: torchrun, SLURM (tasks, then arrays) or Kubernetes indexed jobs."""
    for index, count, first, run in _launchers(environment):
        if index.isdigit() and count.isdigit() and int(count) > 1:
            return Shard(index=int(index) - first + 1, count=int(count), run="" if run == "none" else run)
    return None


def _launchers(environment: Mapping[str, str]) -> Iterator[tuple[str, str, int, str]]:
    get = environment.get
    yield get("RANK", ""), get("WORLD_SIZE", ""), 0, get("TORCHELASTIC_RUN_ID", "")
    yield get("SLURM_PROCID", ""), get("SLURM_NTASKS", ""), 0, get("SLURM_JOB_ID", "")
    first = get("SLURM_ARRAY_TASK_MIN", "0")
    yield (
        get("SLURM_ARRAY_TASK_ID", ""),
        get("SLURM_ARRAY_TASK_COUNT", ""),
        int(first) if first.isdigit() else 0,
        get("SLURM_ARRAY_JOB_ID", ""),
    )
    # An indexed job tells its index only; the count is passed on by hand, as the guide shows.
    yield get("JOB_COMPLETION_INDEX", ""), get("JOB_COMPLETIONS", ""), 0, get("JOB_NAME", "")


def _count(changes: Sequence[Change]) -> dict[str, int]:
    kinds = [change.kind for change in changes]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
