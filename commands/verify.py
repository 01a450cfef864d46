"""``deepinfer verify``: options in, verdict out; the checks are those of ``verify.runner``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from deepinfer.commands.baseline_options import ci_option, store_option
from deepinfer.commands.options import (
    device_option,
    engine_config,
    example,
    json_option,
    model_option,
    profile_option,
    threads_option,
)
from deepinfer.commands.progress import progress_display
from deepinfer.commands.verdict_table import print_verdict
from deepinfer.engine.errors import ConfigError

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    epilog=example(
        "deepinfer verify",
        "deepinfer verify --quick --html verdict.html",
        "deepinfer verify --check batch --check chunks --json",
        "deepinfer verify --scenario vllm-51902",
        "deepinfer verify --self-test",
    )
)
@model_option
@profile_option
@device_option
@threads_option
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Run this check only; repeatable.")
@click.option(
    "--tier",
    type=click.Choice(["metadata", "logprobs", "confidence"]),
    help="Run the YOCO equivalence of this depth only; metadata runs no model.",
)
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME|all", help="Replay a known report.")
@click.option("--quick", is_flag=True, help="The size for before a commit: seconds.")
@click.option("--thorough", is_flag=True, help="The size for before a release: minutes.")
@store_option
@ci_option
@click.option("--list", "list_only", is_flag=True, help="Explain each check and scenario and stop.")
@click.option("--self-test", is_flag=True, help="Seed a fault for every check; each must be found and named.")
@click.option("--junit", type=FILE, help="Also write a JUnit file.")
@click.option("--html", type=FILE, help="Also write a self-contained page.")
@click.option("--pack", type=FILE, help="Also write every failing case, for `deepinfer replay`.")
@click.option(
    "--summary",
    type=FILE,
    envvar="GITHUB_STEP_SUMMARY",
    help="Also append a Markdown summary to this file.  [env: GITHUB_STEP_SUMMARY]",
)
@json_option
def verify(
    model: Path | None,
    profile: str,
    device: str,
    threads: int | None,
    checks: tuple[str, ...],
    tier: str | None,
    scenarios: tuple[str, ...],
    quick: bool,
    thorough: bool,
    store: Path | None,
    ci: bool,
    list_only: bool,
    self_test: bool,
    junit: Path | None,
    html: Path | None,
    pack: Path | None,
    summary: Path | None,
    as_json: bool,
) -> int:
    """Say whether the answers are the same, bit for bit, and if not, where they first differ.

    Exit codes: 0 same, 1 different, 2 usage, 3 unlocked, 4 lock, 5 inconclusive, 130 interrupted.
    """
    if quick and thorough:
        raise click.UsageError("give --quick or --thorough, not both")
    from deepinfer.verify import gate, report, runner
    from deepinfer.verify.result import EXIT_USAGE
    from deepinfer.verify.size import Size
    from deepinfer.verify.written import require_folders

    if list_only:
        listing = runner.describe_checks()
        click.echo(json.dumps(listing, indent=2) if as_json else report.render_listing(listing))
        return 0
    if self_test:
        if any((junit, html, pack)):
            raise click.UsageError("--self-test writes no files; its records are printed with --json")
        return _self_test(model, checks, as_json)
    require_folders(junit, html, pack, summary)
    size = Size.QUICK if quick else Size.THOROUGH if thorough else Size.DEFAULT
    engine = engine_config(profile, device, threads=threads)
    project = gate.load_gate(Path.cwd())
    plan = runner.VerifyConfig(
        model=model,
        engine=engine,
        checks=checks or (() if tier or scenarios else project.checks),
        tier=tier,
        baselines=gate.baseline_gate(store, project, is_ci=ci),
        scenarios=scenarios,
        size=size,
        pack=pack,
    )
    with progress_display() as progress:
        verdict = runner.run_verify(plan, progress)
    if sys.stdout.isatty() and not as_json:
        print_verdict(verdict)
    else:
        click.echo(report.render_json(verdict) if as_json else report.render_text(verdict))
    failed = report.write_files(verdict, junit=junit, html=html, summary=summary)
    for line in failed:
        click.echo(f"error: {line}", err=True)
    return verdict.exit_code or (EXIT_USAGE if failed else 0)


def _self_test(model: Path | None, checks: tuple[str, ...], as_json: bool) -> int:
    from deepinfer.verify import self_test as selftest

    faults = [fault for fault in selftest.FAULTS if not checks or fault.check in checks]
    if not faults:
        raise ConfigError(f"no fault is seeded for check {checks[0]!r}; see deepinfer verify --list")
    with progress_display() as progress:
        records = selftest.self_test(model, faults, progress=progress)
    documents = [record.to_dict() for record in records]
    click.echo(json.dumps(documents, indent=2) if as_json else selftest.render(records))
    return 0 if all(record.as_expected for record in records) else 1
