"""``deepinfer verify --self-test``: every check is shown faults of its kind, and must find and name them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.api import EngineConfig
from deepinfer.engine.errors import DeepInferError
from deepinfer.verify.bisection import Bisection, bisect
from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext
from deepinfer.verify.faults.edit import edited
from deepinfer.verify.faults.engine_faults import ENGINE_FAULTS
from deepinfer.verify.faults.fault import Fault
from deepinfer.verify.faults.kernel_faults import KERNEL_FAULTS
from deepinfer.verify.live import Opener
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.size import Size

FAULTS: tuple[Fault, ...] = (*KERNEL_FAULTS, *ENGINE_FAULTS)
RED = frozenset({Status.DIFFERENT, Status.INCONCLUSIVE})


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """What became of one seeded fault.

    Attributes:
        fault: its name.
        check: the check that had to find it.
        detected: whether that check went red.
        named: what bisect named: ``op: tensor``; empty if there was nothing to bisect.
        expected: ops that it may name, joined by `` or ``, with the tensor to blame; empty if none.
        is_minimal: whether the failing case was shrunk to one without a removable part.
        smallest: that case in words.
        where: layer, function and row that bisect named.
        about: what kind of mistake it stands for; for one that no check finds, why.
        seconds: wall time.
    """

    fault: str
    check: str
    detected: bool
    named: str
    expected: str
    is_minimal: bool
    smallest: str
    where: str
    about: str
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether the fault was found and named, or is one that none can find and none did."""
        if not self.check:
            return not self.detected
        if not self.expected:
            return self.detected
        ops, _, tensor = self.expected.partition(": ")
        op, _, found = self.named.partition(": ")
        return self.detected and op in ops.split(" or ") and found.startswith(tensor)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "as_expected": self.as_expected}


def self_test(
    model: Path | None = None,
    faults: Sequence[Fault] = FAULTS,
    *,
    shrinking: bool = True,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[FaultRecord]:
    """Seed every fault in turn, run the check that must find it, and take the failing case apart.

    Raises:
        EditError: a fault does not fit the source any more.
        DeepInferError: the model cannot be used.
    """
    opener = Opener(model)
    records = []
    for number, fault in enumerate(faults):
        progress(fault.name, number, len(faults))
        records.append(_seed(opener, fault, shrinking=shrinking))
    progress("done", len(faults), len(faults))
    return records


def _seed(opener: Opener, fault: Fault, *, shrinking: bool) -> FaultRecord:
    from deepinfer.verify.runner import CHECKS

    started_s = time.perf_counter()
    checks = [check for check in CHECKS if not fault.check or check.name == fault.check]
    found: Bisection | None = None
    with edited(*fault.edits):
        context = opener.context(EngineConfig(), Size.QUICK, fault=fault.name)
        red = [result for check in checks if (result := _run(check, context)).status in RED]
        failure = red[0].failure if red else None
        if failure is not None and fault.ops:
            found = bisect(context, failure.case, shrinking=shrinking)
    location = found.location if found else None
    shrunk = found.shrunk if found else None
    return FaultRecord(
        fault=fault.name,
        check=fault.check,
        detected=bool(red),
        named=f"{location.op}: {location.tensor}" if location else _named_by(red),
        expected=f"{' or '.join(fault.ops)}: {fault.tensor}" if fault.ops else "",
        is_minimal=bool(shrunk and shrunk.is_minimal),
        smallest=shrunk.case.describe() if shrunk else "",
        where=location.describe() if location else (red[0].detail if red else ""),
        about=fault.about,
        seconds=time.perf_counter() - started_s,
    )


def _named_by(red: Sequence[CheckResult]) -> str:
    """What a check that looks at ops one by one says itself."""
    found = (
        re.fullmatch(r"output \d+ of (\w+)", red[0].difference.array) if red and red[0].difference else None
    )
    return f"{found[1]}: out" if found else ""


def _run(check: Check, context: CheckContext) -> CheckResult:
    """A check's result; what stops it is no detection."""
    from deepinfer.engine.errors import NonFiniteError

    try:
        return check.run(context)
    except NonFiniteError as error:
        return CheckResult(name=check.name, status=Status.INCONCLUSIVE, detail=str(error))
    except DeepInferError as error:
        return CheckResult(name=check.name, status=Status.SKIPPED, detail=str(error))


def render(records: Sequence[FaultRecord]) -> str:
    """A table of faults, and the figures below it."""
    rows = [("fault", "check", "found", "named", "minimal", "s")]
    rows += [
        (
            record.fault,
            record.check or "(none can)",
            "yes" if record.detected else "no",
            record.named or "-",
            "yes" if record.is_minimal else "-",
            f"{record.seconds:.1f}",
        )
        for record in records
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    wrong = [record.fault for record in records if not record.as_expected]
    named = sum(bool(record.expected) and record.as_expected for record in records)
    silent = [record for record in records if not record.detected]
    lines += ["", *(f"not found: {record.fault} ({record.about})" for record in silent)]
    minimal = sum(record.is_minimal for record in records)
    lines.append(
        f"{sum(record.detected for record in records)} of {len(records)} faults found, "
        f"{named} named by bisect, {minimal} shrunk to a 1-minimal case"
    )
    if wrong:
        lines.append(f"NOT AS EXPECTED: {', '.join(wrong)}")
    return "\n".join(lines)
