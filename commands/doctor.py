"""``deepinfer doctor``: prints what ``verify.doctor`` found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer.commands.options import engine_config, engine_options, example, json_option, model_option

if TYPE_CHECKING:
    from deepinfer.verify.doctor import Diagnosis


@click.command(epilog=example("deepinfer doctor", "deepinfer doctor --lock-dir .", "deepinfer doctor --warm"))
@model_option
@click.option(
    "--lock-dir",
    "lock_dirs",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    help="Only probe, with several processes, what may be trusted on this mount; twice for two mounts.",
)
@click.option("--warm", is_flag=True, help="Load the model and time the first use of the kernels.")
@engine_options
@json_option
def doctor(
    model: Path | None, warm: bool, as_json: bool, lock_dirs: tuple[Path, ...], **engine: Any
) -> int | None:
    """Print the machine, its platform and provenance, the promise, and the bytes of the caches.

    Without --warm no weight is loaded: a config.json alone is enough. With --lock-dir the exit code is 4
    when a store could not trust its lock there.
    """
    if lock_dirs:
        return _probe(lock_dirs, as_json)
    from deepinfer.verify.doctor import examine

    found = examine(model, engine_config(**engine), warm=warm)
    click.echo(json.dumps(found.to_dict(), indent=2) if as_json else render(found))
    return None


def _probe(folders: tuple[Path, ...], as_json: bool) -> int:
    from dataclasses import asdict

    from deepinfer.baselines.lock_probe import probe_locks
    from deepinfer.eval.report import render_table

    found = probe_locks(folders)
    if as_json:
        click.echo(json.dumps({"exit_code": found.exit_code, **asdict(found)}, indent=2))
        return found.exit_code
    rows = [[r.name, "trusted" if r.is_trusted else "NOT TRUSTED", r.detail] for r in found.results]
    click.echo("\n".join(render_table(["lock", "verdict", "what was seen"], rows, text_columns=3)))
    click.echo(
        f"{found.folder}: file system {found.file_system or 'unknown'}; a store would use {found.chosen}"
    )
    return found.exit_code


def render(found: Diagnosis) -> str:
    """A page of text: platform, kernels, promise, caches."""
    return "\n".join([*_platform(found), "", *_promise(found), "", *_caches(found)])


def _platform(found: Diagnosis) -> list[str]:
    packages = " ".join(
        f"{name} {version}" for name, version in found.environment["packages"].items() if version
    )
    kernels = found.kernels
    lines = [
        f"platform   {found.processor}, {found.environment['machine']} {found.environment['system']}, "
        f"{found.num_threads} threads, vectors of {kernels.vector_lanes} floats",
        f"versions   python {found.environment['python']} {packages}",
        f"baselines  {', '.join(f'{name} -> {value}' for name, value in found.platforms.items())}",
        "provenance " + " ".join(f"{name}={value[:40]}" for name, value in sorted(found.provenance.items())),
        f"kernels    {kernels.digest[:16]}, {kernels.num_cached} compiled in {kernels.cache_folder}",
    ]
    if found.warm is not None:
        lines.append(
            f"first use  {found.warm.first_s:.1f} s with {found.warm.num_compiled} kernels compiled, "
            f"then {found.warm.again_s:.2f} s: one sequence scored, drafted and continued"
        )
    return lines


def _promise(found: Diagnosis) -> list[str]:
    from deepinfer.eval.report import render_table

    engine = found.engine
    lines = [
        f"promise of profile {engine.profile}, caches {engine.cache_format}, prefill {engine.prefill}, "
        f"kernel set {engine.backend}: bits do not depend on"
    ]
    rows = [
        [
            clause.name,
            *(str(found.promise[profile][row].standing) for profile in found.promise),
            clause.check or "-",
            clause.about,
        ]
        for row, clause in enumerate(found.promise[engine.profile])
    ]
    header = ["clause", *(str(profile) for profile in found.promise), "check", "what, or why not"]
    return lines + render_table(header, rows, text_columns=len(header))


def _caches(found: Diagnosis) -> list[str]:
    from deepinfer.engine.cache.footprint import RELEASED, as_lines
    from deepinfer.eval.report import render_table

    measured, formula, released = map(as_lines, (found.measured, found.formula, RELEASED))
    rows = [
        [name.replace("_", " "), *(f"{values[name]:,}" for values in (measured, formula, released))]
        for name in measured
    ]
    header = [f"cache bytes of {found.model}", "measured", "formula", "released model"]
    requests = ", ".join(f"{size:,} at {length:,} tokens" for length, size in found.request_bytes.items())
    return [*render_table(header, rows), f"a request holds {requests}"]
