"""Baseline commands that run the model: check, lock, refresh."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer.commands.baseline_options import (
    ci_option,
    command_line,
    current_gate,
    lock_options,
    locking,
    plan_options,
    plans_of,
    reason_option,
    selection,
    selection_options,
    store_option,
    store_to_read,
    store_to_write,
)
from deepinfer.commands.options import (
    engine_config,
    engine_options,
    example,
    json_option,
    model_option,
)
from deepinfer.commands.progress import progress_display
from deepinfer.engine.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.eval.engines.native import NativeScorer
    from deepinfer.eval.scoring_plan import PlannedSample
    from deepinfer.verify.baseline_run import Shard


@click.command(epilog=example("deepinfer baseline check", "deepinfer baseline check --workload code --json"))
@model_option
@store_option
@selection_options
@plan_options
@engine_options
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Also write a JUnit file.")
@click.option("--github", is_flag=True, help="Also print GitHub annotations, the ten worst at most.")
@click.option(
    "--summary",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="GITHUB_STEP_SUMMARY",
    help="Also append a Markdown summary to this file.  [env: GITHUB_STEP_SUMMARY]",
)
@json_option
def check(
    store: Path | None,
    junit: Path | None,
    github: bool,
    summary: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Compare every selected sample with what is locked for it, byte by byte. Never writes.

    Exit codes: 0 same, 1 different, 3 missing, orphaned or damaged, 5 inconclusive.
    """
    from deepinfer.verify import baseline_files
    from deepinfer.verify.baseline_run import check_samples
    from deepinfer.verify.baseline_text import render_check
    from deepinfer.verify.written import require_folders

    require_folders(junit, summary)
    baselines = store_to_read(store)
    scorer, planned, chosen = _prepare(options)
    with progress_display() as progress:
        report, _ = check_samples(scorer, baselines, planned, progress, chosen)
    click.echo(
        json.dumps(baseline_files.check_to_dict(report), indent=2) if as_json else render_check(report)
    )
    if github:
        for line in baseline_files.github_annotations(report):
            click.echo(line, err=as_json)
    if junit is not None:
        junit.write_text(baseline_files.render_junit(report), encoding="utf-8")
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(baseline_files.render_markdown(report))
    return report.exit_code


@click.command(epilog=example("deepinfer baseline lock --store mine --texts prose --max-tokens 64"))
@model_option
@store_option
@selection_options
@plan_options
@engine_options
@lock_options
@reason_option
@ci_option
@json_option
def lock(
    store: Path | None,
    reason: str,
    ci: bool,
    as_json: bool,
    lock_timeout: float,
    lock_kind: str | None,
    lock_stale: float,
    **options: Any,
) -> int:
    """Lock samples for the first time; what is locked already with other bits is refused.

    Exit codes: 0 locked, 2 refused, 4 another writer holds the store, 5 a log-probability is not finite.
    """
    from deepinfer.verify.baseline_run import author_of, lock_samples
    from deepinfer.verify.baseline_text import render_write

    baselines = store_to_write(store, ci, locking(lock_timeout, lock_kind, lock_stale))
    scorer, planned, _ = _prepare(options)
    author = author_of(scorer, reason, command_line())
    with progress_display() as progress:
        report = lock_samples(scorer, baselines, planned, author, progress)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else render_write(report, "lock"))
    return report.exit_code


@click.command(
    epilog=example(
        "deepinfer baseline refresh --store mine", "deepinfer baseline refresh --store mine --shard 2/4"
    )
)
@model_option
@store_option
@selection_options
@plan_options
@engine_options
@lock_options
@click.option(
    "--shard",
    metavar="i/K",
    help="Score the i-th of K parts.  [default: what torchrun, SLURM or a Kubernetes indexed job assigned]",
)
@click.option("--run", "run_name", help="Name shared by all shards: an interrupted shard then goes on.")
@reason_option
@ci_option
@json_option
def refresh(
    store: Path | None,
    shard: str | None,
    run_name: str | None,
    reason: str,
    ci: bool,
    as_json: bool,
    lock_timeout: float,
    lock_kind: str | None,
    lock_stale: float,
    **options: Any,
) -> int:
    """Score samples again; bits that differ from what is locked wait for review.

    Exit codes: 0 nothing moved, 1 something waits for review, 4 another writer holds the store or this shard,
    5 a log-probability is not finite.
    """
    from deepinfer.verify.baseline_run import author_of, refresh_samples
    from deepinfer.verify.baseline_text import render_write

    baselines = store_to_write(store, ci, locking(lock_timeout, lock_kind, lock_stale))
    part = _shard(shard, run_name)
    scorer, planned, _ = _prepare(options)
    author = author_of(scorer, reason, command_line())
    with progress_display() as progress:
        report = refresh_samples(scorer, baselines, planned, author, part, progress)
    name = f"refresh, shard {part.index} of {part.count}" if part.count > 1 else "refresh"
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else render_write(report, name))
    return report.exit_code


def _prepare(options: dict[str, Any]) -> tuple[NativeScorer, list[PlannedSample], Any]:
    """The scorer and the samples that the shared options describe."""
    from deepinfer.eval.engines.native import NativeScorer
    from deepinfer.verify.baseline_run import select_samples

    chosen = selection(*(options.pop(name) for name in ("sample", "workload", "platform", "model_name")))
    plans = plans_of(current_gate(), *(options.pop(name) for name in ("texts", "policy", "max_tokens")))
    scorer = NativeScorer(options.pop("model"), engine_config(**options))
    return scorer, select_samples(scorer, plans, chosen), chosen


def _shard(text: str | None, run_name: str | None) -> Shard:
    from deepinfer.verify.baseline_run import Shard, shard_from_environment

    if text is None:
        found = shard_from_environment(os.environ)
        if found is None:
            return Shard(run=run_name or "")
        click.echo(f"shard {found.index} of {found.count}, assigned by the launcher", err=True)
        return Shard(index=found.index, count=found.count, run=run_name or found.run)
    numbers = re.fullmatch(r"(\d+)/(\d+)", text)
    if numbers is None or not 1 <= int(numbers[1]) <= int(numbers[2]):
        raise ConfigError(f"--shard {text!r}: give i/K with i from 1 to K, such as 1/4")
    return Shard(index=int(numbers[1]), count=int(numbers[2]), run=run_name or "")
