"""What a check found, and the verdict over all of them (product.md section 5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deepinfer.verify.case import Case
from deepinfer.verify.compare import Comparison
from deepinfer.verify.explain import Explanation
from deepinfer.verify.perplexity_bars import PerplexityBar

EXIT_SAME = 0
EXIT_DIFFERENT = 1
EXIT_USAGE = 2
EXIT_UNLOCKED = 3
EXIT_LOCK = 4
EXIT_INCONCLUSIVE = 5

WORST_FIRST = (EXIT_USAGE, EXIT_LOCK, EXIT_DIFFERENT, EXIT_UNLOCKED, EXIT_INCONCLUSIVE, EXIT_SAME)
VERDICT_NAMES = {
    EXIT_SAME: "same",
    EXIT_DIFFERENT: "different",
    EXIT_USAGE: "usage",
    EXIT_UNLOCKED: "unlocked",
    EXIT_LOCK: "lock",
    EXIT_INCONCLUSIVE: "inconclusive",
}


class Status(StrEnum):
    """Outcome of one check."""

    SAME = "same"
    DIFFERENT = "different"
    UNLOCKED = "unlocked"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not_applicable"


# A requested check that did not run leaves the question open, so it is never green. A clause that cannot
# exist in this configuration does not count, so it has no code.
STATUS_CODES = {
    Status.SAME: EXIT_SAME,
    Status.DIFFERENT: EXIT_DIFFERENT,
    Status.UNLOCKED: EXIT_UNLOCKED,
    Status.INCONCLUSIVE: EXIT_INCONCLUSIVE,
    Status.SKIPPED: EXIT_INCONCLUSIVE,
}


@dataclass(frozen=True, kw_only=True)
class LocatedDifference:
    """A difference and where it was met.

    Attributes:
        case: what was run on the two sides, e.g. ``batch 7, position first``.
        array: the array that differs, e.g. ``logits``.
        comparison: the bytes.
        position: absolute token position of the first differing row, if the rows are token positions.
    """

    case: str
    array: str
    comparison: Comparison
    position: int | None = None


@dataclass(frozen=True, kw_only=True)
class Item:
    """One of the things that a check looked at, for reports that list them.

    Attributes:
        group: what it belongs to.
        name: its name within the group.
        status: its outcome.
        detail: one line for a person; empty when there is nothing to say.
    """

    group: str
    name: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one check found on one workload.

    Attributes:
        num_cases: cases run.
        num_rows: logits rows compared.
        num_differing: rows that differ.
    """

    num_cases: int = 0
    num_rows: int = 0
    num_differing: int = 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failing case of a check and what it looks like."""

    case: Case
    explanation: Explanation


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check found.

    Attributes:
        name: the check's name.
        status: its outcome.
        num_comparisons: full-vocabulary logits rows compared as bytes between two separately executed runs.
        num_inspected: other things looked at (values against a reference, planned rows, state arrays).
        detail: one line for a person.
        difference: the first difference, if there is one.
        num_different: arrays that differ.
        num_cases: cases run, for a check made of cases.
        cells: what was found on each workload.
        failure: the first failing case, explained.
        figures: numbers worth reporting that decide nothing.
        perplexity: of the texts that were scored, for a check that scores texts.
        items: one entry a thing, where a check has many that reports list; they decide nothing by themselves.
        seconds: wall time.
    """

    name: str
    status: Status
    detail: str
    num_comparisons: int = 0
    num_inspected: int = 0
    difference: LocatedDifference | None = None
    num_different: int = 0
    num_cases: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)
    failure: Failure | None = None
    figures: dict[str, float] = field(default_factory=dict)
    perplexity: tuple[PerplexityBar, ...] = ()
    items: tuple[Item, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a green result of a check that looked at nothing."""
        if self.status is Status.SAME and self.num_comparisons + self.num_inspected == 0:
            raise ValueError(f"check {self.name} calls nothing the same")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Everything a run of verify has to say.

    Attributes:
        results: one entry per requested check, in the order they ran.
        subject: what was verified, as label and value (model, profile, versions, threads).
        notes: lines a person must see besides the checks, e.g. that no baseline exists.
        perplexity: of the texts that were looked at, as figures.
        fingerprint: versions, machine and kernels.
        seconds: wall time of the whole run.
    """

    results: tuple[CheckResult, ...]
    subject: dict[str, str]
    notes: tuple[str, ...] = ()
    perplexity: tuple[PerplexityBar, ...] = ()
    fingerprint: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The worst verdict of the checks that count; a run in which none counts is inconclusive."""
        return worst_code(STATUS_CODES[r.status] for r in self.results if r.status in STATUS_CODES)

    @property
    def name(self) -> str:
        """The verdict in one word."""
        return VERDICT_NAMES[self.exit_code]

    @property
    def num_comparisons(self) -> int:
        """Comparisons of all checks."""
        return sum(result.num_comparisons for result in self.results)


def worst_code(codes: Iterable[int]) -> int:
    """The exit code that wins; nothing at all is inconclusive, never green."""
    present = set(codes)
    return next((code for code in WORST_FIRST if code in present), EXIT_INCONCLUSIVE)
