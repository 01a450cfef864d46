"""Where the time of decode steps goes: each with its shape, its host time and its landing.

Put in place of the runner of a core, so the engine knows nothing of it. Costs a few microseconds a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from deepinfer.engine.asynchrony import Runner
from deepinfer.engine.core import EngineCore
from deepinfer.engine.speculation.confidence import ConfidenceDrafts
from deepinfer.engine.turns.turn_run import TurnResult, TurnRun

T = TypeVar("T")


class LoggedRunner:
    """Starts work through another runner and notes when it began, was launched and landed.

    Attributes:
        steps: one dict a step; see ``_named`` for its keys. ``host_ms`` is the launch, ``ms`` from the
            landing of the step before to its own (from its launch, if nothing was in flight).
    """

    def __init__(self, runner: Runner) -> None:
        """``runner`` does the work."""
        self._runner = runner
        self._landed_s, self._num_ahead = 0.0, 0
        self.steps: list[dict[str, Any]] = []
        self.is_asynchronous = runner.is_asynchronous

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """See ``Runner``."""
        entry = _named(work)
        recordings = work.recordings if isinstance(work, TurnRun) else None
        before = (recordings.num_unplayed, recordings.num_recorded) if recordings else (0, 0)
        begun_s = time.perf_counter()
        is_first = self._num_ahead == 0
        self._num_ahead += 1
        wait = self._runner.start(work)
        launched_s = time.perf_counter()
        entry["host_ms"] = round((launched_s - begun_s) * 1e3, 3)
        if recordings:
            is_recorded = recordings.num_recorded > before[1]
            is_eager = recordings.num_unplayed > before[0]
            entry["how"] = "recorded" if is_recorded else "eager" if is_eager else "played"
        self.steps.append(entry)

        def finish() -> T:
            result = wait()
            self._num_ahead -= 1
            now_s = time.perf_counter()
            entry["ms"] = round((now_s - (begun_s if is_first else self._landed_s)) * 1e3, 3)
            entry["tokens"] = _num_tokens(result)
            self._landed_s = now_s
            return result

        return finish


def _num_tokens(result: Any) -> int:
    """Tokens that a step gave; of a turn without a look at its sequences, which costs what is timed."""
    if isinstance(result, TurnResult):
        found = result.outcome
        return int((found.accepted + 1)[found.count > 0].sum())
    return sum(len(answer.token_ids) for answer in getattr(result, "answers", ()))


def _named(work: Callable[[], Any]) -> dict[str, Any]:
    """Kind and sequences; of a turn also its padded sequences and rows, and what it does for drafts."""
    shares = getattr(work, "shares", ())
    entry: dict[str, Any] = {"sequences": len(shares), "kind": type(work).__name__}
    if isinstance(work, TurnRun):
        shape = work.shape
        entry |= {
            "held": shape.num_sequences,
            "rows": shape.num_rows,
            "width": shape.width,
            "blocks": shape.num_blocks,
            "drafting": shape.drafting.value,
            "drafted": shape.num_drafted,
            "shared_out": shape.is_shared_out,
            "entries": [list(entry) for entry in shape.entries],
        }
    return entry


def log_of(core: EngineCore) -> LoggedRunner:
    """Every step that ``core`` starts from now on."""
    logged = LoggedRunner(core._runner)
    core._runner = logged
    return logged


def beliefs(core: EngineCore) -> dict[str, Any]:
    """What policy ``confidence`` believes of costs and pauses by batch size; empty for other policies."""
    policy = None if core.speculation is None else core.speculation.policy
    if not isinstance(policy, ConfidenceDrafts):
        return {}
    cases = {
        count: {
            "left": case.left,
            "is_paused": case.is_paused,
            "next_pause": case.next_pause,
            "until_trial": case.until_trial,
            "steps": len(case.tokens),
        }
        for count, case in policy._pauses._cases.items()
    }
    costs = {
        count: {
            "drafting": dict(found.drafting._medians),
            "plain": found.plain.at(0),
            "watching": found.watching.at(0),
        }
        for count, found in policy._costs.items()
    }
    return {"cases": cases, "costs": costs, "chosen": dict(policy._chosen)}


def table(steps: list[dict[str, Any]]) -> list[str]:
    """Steps by shape and way of running, the dearest group first: Markdown."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for step in steps:
        names = ("kind", "held", "rows", "drafting", "drafted", "shared_out", "how")
        groups.setdefault(tuple(step.get(name, "") for name in names), []).append(step.get("ms", 0.0))
    lines = ["| kind | held | rows | drafting | drafted | shared out | how | steps | ms | median |"]
    lines.append("|---" * 10 + "|")
    for names, times in sorted(groups.items(), key=lambda item: -sum(item[1])):
        middle = sorted(times)[len(times) // 2]
        cells = [*map(str, names), str(len(times)), f"{sum(times):.1f}", f"{middle:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
