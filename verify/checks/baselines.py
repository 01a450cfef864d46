"""Are the log-probabilities those that were locked, byte for byte; without a baseline, are they no worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from deepinfer.baselines.check import CheckStatus
from deepinfer.baselines.errors import BaselineError, UnlockedError
from deepinfer.baselines.fingerprint import PORTABLE
from deepinfer.baselines.key import Key
from deepinfer.baselines.records import Entry
from deepinfer.baselines.state import State
from deepinfer.baselines.store import Baselines
from deepinfer.engine.api import Profile
from deepinfer.engine.errors import ConfigError
from deepinfer.eval.baseline_scores import score_samples
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.scoring_plan import PlannedSample, plan_samples
from deepinfer.eval.stats import MIN_DOCUMENTS, clustered_mean
from deepinfer.verify.baseline_run import CheckReport, check_samples
from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext
from deepinfer.verify.gate import BaselineGate
from deepinfer.verify.perplexity_bars import baseline_bars
from deepinfer.verify.result import CheckResult, Item, Status

NAME = "baselines"
QUICK_STRIDE = 18
"""The quick size scores every eighteenth locked sample, unless a project or a CI run asked for all.

Of each bundled workload that is at least one.
"""

_STATUSES = {
    CheckStatus.SAME: Status.SAME,
    CheckStatus.DIFFERENT: Status.DIFFERENT,
    CheckStatus.MISSING: Status.UNLOCKED,
    CheckStatus.ORPHAN: Status.UNLOCKED,
    CheckStatus.DAMAGED: Status.UNLOCKED,
    CheckStatus.INCONCLUSIVE: Status.INCONCLUSIVE,
}
_BY_EXIT_CODE = {0: Status.SAME, 1: Status.DIFFERENT, 3: Status.UNLOCKED, 5: Status.INCONCLUSIVE}


def run(context: CheckContext) -> CheckResult:
    """Check the locked samples; where none is locked, compare perplexity with the strict values."""
    if context.open_scorer is None:
        return CheckResult(
            name=NAME, status=Status.NOT_APPLICABLE, detail="this engine does not score for baselines"
        )
    gate = context.baseline_gate
    store = Baselines(gate.store.path)
    scorer = context.open_scorer()
    planned = plan_samples(scorer, gate.plans)
    try:
        state = store.state()
        locked = [item for item in planned if state.locked_entry(item.key) is not None]
        stride = 1 if gate.is_required else context.size.pick(QUICK_STRIDE, 1, 1)
        if not locked and not gate.is_required:
            return _without_baseline(gate, state, scorer, planned[::stride])
        scored = planned if gate.is_required else locked[::stride]
        report, rows_of = check_samples(scorer, store, scored, is_required=gate.is_required, asked=planned)
    except UnlockedError as error:
        return CheckResult(name=NAME, status=Status.UNLOCKED, detail=str(error))
    except BaselineError as error:  # an unreadable folder, or a store of a later version
        raise ConfigError(str(error)) from error
    num_left_out = len(locked) - len(locked[::stride])
    result = _result(report, gate, num_unlocked=len(planned) - len(locked), num_left_out=num_left_out)
    return replace(result, perplexity=baseline_bars(rows_of, state.locked_entry))


def _result(report: CheckReport, gate: BaselineGate, *, num_unlocked: int, num_left_out: int) -> CheckResult:
    status = _BY_EXIT_CODE[report.exit_code]
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items())
    where = "bundled" if gate.store.is_bundled else report.store
    if status is Status.SAME:
        scope = report.outcomes[0].key.scope
        detail = (
            f"{report.counts[CheckStatus.SAME]} samples, {report.num_rows:,} rows equal those locked "
            f"({scope.platform}, {scope.profile}, {where})"
        )
        if num_left_out:
            detail += f"; {num_left_out} more are left to the larger sizes"
        if num_unlocked:
            detail += f"; {num_unlocked} more are not locked"
    else:
        worst = [f"; {outcome.key.sample}: {outcome.reason}" for outcome in report.worst()[:1]]
        detail = f"{counts} ({where}){''.join(worst)}"
    return CheckResult(
        name=NAME,
        status=status,
        detail=detail,
        num_inspected=report.num_rows,
        num_different=report.counts.get(CheckStatus.DIFFERENT, 0),
        items=tuple(
            Item(
                group=str(outcome.key.scope),
                name=outcome.key.sample,
                status=_STATUSES[outcome.status],
                detail=outcome.reason,
            )
            for outcome in report.outcomes
        ),
    )


def _without_baseline(
    gate: BaselineGate,
    state: State,
    scorer: Scorer,
    planned: Sequence[PlannedSample],
) -> CheckResult:
    """Nothing is locked for this platform: say so, and hold perplexity against the portable strict values."""
    scope = planned[0].key.scope
    options = f" --profile {scope.profile}" if scope.profile != Profile.STRICT else ""
    head = (
        f"none locked for {scope.platform}/{scope.profile}, so drift of bits is NOT checked "
        f"(deepinfer baseline lock{options} locks them)"
    )
    pairs = [
        (item, entry)
        for item in planned
        if (entry := state.locked_entry(_portable_key(item.key))) is not None
    ]
    if not pairs:
        return CheckResult(name=NAME, status=Status.NOT_APPLICABLE, detail=head)
    rows_of = dict(score_samples(scorer, [item for item, _ in pairs]))
    entries = {item.key: entry for item, entry in pairs}
    status, detail, num_tokens = _tolerance(gate, rows_of, entries)
    return CheckResult(
        name=NAME,
        status=status,
        detail=f"{head}; {detail}",
        num_inspected=num_tokens,
        perplexity=baseline_bars(rows_of, entries.get),
    )


def _tolerance(
    gate: BaselineGate, rows_of: Mapping[Key, SampleRows], entries: Mapping[Key, Entry]
) -> tuple[Status, str, int]:
    """One-sided paired test of perplexity, clustered by sample (product.md section 5)."""
    sums: list[float] = []
    counts: list[int] = []
    for key, rows in rows_of.items():
        scored = rows.logprob[rows.valid].astype(np.float64)
        if not np.isfinite(scored).all():
            return Status.INCONCLUSIVE, f"{key.sample}: a log-probability is not finite", 0
        sums.append(-math.fsum(scored.tolist()) - float.fromhex(entries[key].nll))
        counts.append(len(scored))
    delta = clustered_mean(sums, counts)
    if delta is None or delta.num_documents < MIN_DOCUMENTS or delta.z_score is None:
        return Status.INCONCLUSIVE, f"fewer than {MIN_DOCUMENTS} samples to compare with", sum(counts)
    increase = math.expm1(delta.mean)
    found = (
        f"perplexity {increase:+.3%} against the strict values (z {delta.z_score:.1f}, "
        f"{delta.num_documents} samples)"
    )
    if delta.z_score > gate.max_z and increase > gate.max_increase:
        return Status.DIFFERENT, f"regression: {found}", sum(counts)
    return Status.SAME, f"{found}, no regression", sum(counts)


def _portable_key(key: Key) -> Key:
    return Key(replace(key.scope, platform=PORTABLE, profile=Profile.STRICT.value), key.sample)


CHECK = Check(
    name=NAME,
    about="log-probabilities of locked samples are the bytes that were locked, on this or another machine",
    run=run,
)
