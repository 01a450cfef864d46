"""Baseline reports as text for a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from deepinfer.baselines.check import CheckStatus
from deepinfer.baselines.fingerprint import describe_moved
from deepinfer.baselines.fsck import FsckReport
from deepinfer.baselines.records import Change
from deepinfer.baselines.state import RevisionInfo
from deepinfer.eval.report import render_table
from deepinfer.verify.result import VERDICT_NAMES

if TYPE_CHECKING:
    from deepinfer.verify.baseline_diff import DiffReport, KeyDiff
    from deepinfer.verify.baseline_run import CheckReport, WriteReport

_MAX_LISTED = 20


def render_check(report: CheckReport) -> str:
    """The worst keys, counts, and the verdict last."""
    worst = report.worst()
    lines = [f"{outcome.status:<12} {outcome.key}: {outcome.reason}" for outcome in worst[:_MAX_LISTED]]
    if len(worst) > _MAX_LISTED:
        lines.append(f"... and {len(worst) - _MAX_LISTED} more (--json lists all)")
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items()) or "no keys"
    if set(report.counts) & {CheckStatus.MISSING} and len(report.counts) == 1:
        lines.append("nothing is locked yet: 'deepinfer baseline lock --store DIR' locks it")
    verdict = VERDICT_NAMES[report.exit_code]
    lines.append(
        f"verdict: {verdict} ({counts}, {report.num_rows:,} rows, {report.store}, exit code "
        f"{report.exit_code})"
    )
    return "\n".join(lines)


def render_write(report: WriteReport, action: str) -> str:
    """What was published and what to do next."""
    published = ", ".join(f"{count} {kind}" for kind, count in report.changes.items()) or "nothing new"
    lines = [f"{action}: {report.num_keys} keys scored, {published} ({report.store})"]
    if report.num_settled:
        lines.append(f"{report.num_settled} of them were settled by an earlier run of this refresh")
    if report.pending:
        lines.append(
            f"{len(report.pending)} wait for review: 'deepinfer baseline diff --store {report.store}', then "
            "accept KEY... --reason WHY, or reject"
        )
    return "\n".join(lines)


def render_diff(report: DiffReport) -> str:
    """Runs first, then key by key, the largest change first."""
    if not report.keys:
        return "nothing waits for review"
    lines: list[str] = []
    for scope in report.scopes:
        delta, change = scope.delta, scope.perplexity_pending / scope.perplexity_locked - 1
        error = "" if delta is None or delta.standard_error is None else f" +- {delta.standard_error:.2g}"
        z = "" if delta is None or delta.z_score is None else f", z {delta.z_score:.2f}"
        mean = 0.0 if delta is None else delta.mean
        lines.append(
            f"{scope.scope}: perplexity {scope.perplexity_locked:.6g} -> {scope.perplexity_pending:.6g} "
            f"({change:+.3%}), {mean:+.3g}{error} nats per token over {scope.num_samples} samples{z}"
        )
    lines.append("")
    for diff in report.keys[:_MAX_LISTED]:
        lines += describe_key_diff(diff)
    if len(report.keys) > _MAX_LISTED:
        lines.append(f"... and {len(report.keys) - _MAX_LISTED} more (--json lists all)")
    return "\n".join(lines)


def describe_key_diff(diff: KeyDiff) -> list[str]:
    """One key in two or three lines."""
    if diff.locked is None:
        return [f"new       {diff.key}: NLL {float.fromhex(diff.pending.nll):.6g}", f"          {diff.note}"]
    if diff.outcome is None:
        return [f"unreadable {diff.key}: {diff.note}"]
    moved = describe_moved(diff.outcome.moved)
    return [
        f"different {diff.key}: NLL {diff.delta_nll:+.6g}",
        f"          {diff.outcome.reason.removesuffix('; ' + moved)}",
        f"          moved: {moved}; {diff.note}",
    ]


def render_status(rows: Sequence[dict[str, str | int]]) -> str:
    """One line a platform, model and workload."""
    if not rows:
        return "nothing is locked and nothing waits"
    names = list(rows[0])
    return "\n".join(
        render_table(names, [[str(row[name]) for name in names] for row in rows], text_columns=1)
    )


def render_history(steps: Iterable[tuple[RevisionInfo, Sequence[Change]]]) -> str:
    """One line a revision, its changes below when few are asked for."""
    lines = []
    for info, changes in steps:
        note = info.note
        kinds = [change.kind for change in changes]
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "no changes"
        reason = f": {note.reason}" if note.reason else ""
        lines.append(
            f"{info.number:>6}  {note.time}  {note.action:<8} {counted}  {note.who}@{note.host}{reason}"
        )
        lines += [
            f"        {change.kind:<8} {change.key}"
            + (
                f"  NLL {float.fromhex(change.entry.nll):.6g} {change.entry.digest[:12]}"
                if change.entry
                else ""
            )
            for change in changes[:_MAX_LISTED]
        ]
        if len(changes) > _MAX_LISTED:
            lines.append(f"        ... and {len(changes) - _MAX_LISTED} more")
    return "\n".join(lines) or "no revision concerns these keys"


def render_fsck(report: FsckReport) -> str:
    """Damage first, then what was recovered, then figures."""
    return "\n".join(
        [
            *(f"damaged: {line}" for line in report.problems),
            *(f"recovered: {line}" for line in report.recovered),
            *(f"note: {line}" for line in report.notices),
            f"{'damaged' if report.problems else 'sound'}: {report.num_revisions} revisions, "
            f"{report.num_blobs} blobs and {report.num_entries} entries recomputed",
        ]
    )
