"""``deepinfer bisect`` and ``deepinfer replay``: a failing case taken apart, here or elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import is_zipfile

import click

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
from deepinfer.engine.api import EngineConfig
from deepinfer.engine.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.verify.case import Case
    from deepinfer.verify.context import CheckContext
    from deepinfer.verify.size import Size

EXIT_SAME, EXIT_DIFFERENT, EXIT_INCONCLUSIVE = 0, 1, 5


@click.command(
    epilog=example(
        "deepinfer bisect batch/7-first",
        "deepinfer bisect failure.pack",
        "deepinfer trace --out here.trace && deepinfer bisect here.trace there.trace",
    )
)
@click.argument("case", metavar="CASE|PACK|TRACE")
@click.argument("other", metavar="[TRACE]", required=False)
@model_option
@profile_option
@device_option
@threads_option
@click.option("--no-shrink", is_flag=True, help="Take the case apart as it is.")
@click.option("--quick", is_flag=True, help="CASE is one of verify --quick.")
@click.option("--thorough", is_flag=True, help="CASE is one of verify --thorough.")
@json_option
def bisect(
    case: str,
    other: str | None,
    model: Path | None,
    profile: str,
    device: str,
    threads: int | None,
    no_shrink: bool,
    quick: bool,
    thorough: bool,
    as_json: bool,
) -> int:
    """Name the first layer, op, row and tensor in which two sides differ, and shrink the case.

    CASE is a name from a report of verify, PACK a file of verify --pack (its first case), and two TRACEs are
    files of deepinfer trace from two machines or versions.

    Exit codes: 0 nothing differs, 1 different, 2 usage, 5 undecided.
    """
    if other is not None:
        if quick or thorough or no_shrink:
            raise click.UsageError(
                "two traces are compared as they are; drop --quick, --thorough, --no-shrink"
            )
        return _compare_traces(Path(case), Path(other), as_json)
    from deepinfer.verify.bisection import bisect as take_apart
    from deepinfer.verify.explain_text import render_bisection
    from deepinfer.verify.size import Size

    size = Size.QUICK if quick else Size.THOROUGH if thorough else Size.DEFAULT
    engine = engine_config(profile, device, threads=threads)
    context, chosen = _chosen(case, model, engine, size)
    with progress_display() as progress:
        found = take_apart(context, chosen, shrinking=not no_shrink, say=lambda what: progress(what, 0, 1))
    click.echo(json.dumps(found.to_dict(), indent=2, default=str) if as_json else render_bisection(found))
    if found.blocked is not None:
        return EXIT_INCONCLUSIVE
    return EXIT_DIFFERENT if found.differs else EXIT_SAME


def _chosen(name: str, model: Path | None, engine: EngineConfig, size: Size) -> tuple[CheckContext, Case]:
    from deepinfer.verify.bisection import find_case
    from deepinfer.verify.live import open_context
    from deepinfer.verify.pack import read_pack

    if Path(name).is_file():
        if is_zipfile(name):
            raise ConfigError(f"{name} looks like a trace; a trace is compared with another: give two")
        pack = read_pack(Path(name))
        if not pack.cases:
            raise ConfigError(f"{name}: the pack holds no case")
        return open_context(model, pack.engine, size), pack.cases[0].case
    context = open_context(model, engine, size)
    return context, find_case(context, name)


def _compare_traces(left: Path, right: Path, as_json: bool) -> int:
    from deepinfer.verify.locate import first_difference
    from deepinfer.verify.trace_file import read_trace

    (one, here), (two, there) = read_trace(left), read_trace(right)
    if here.get("token_hash") != there.get("token_hash"):
        raise ConfigError(f"{left} and {right} are traces of different tokens; trace the same case twice")
    found = first_difference(one, two)
    shared = len(one.digests.keys() & two.digests.keys())
    moved = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if as_json:
        location = found.to_dict() if found else None
        click.echo(json.dumps({"location": location, "num_compared": shared, "left": here, "right": there}))
    elif found:
        click.echo(f"named       {found.describe()}")
        click.echo(f"moved       {', '.join(moved) or 'nothing that the traces know of'}")
    else:
        click.echo(f"all {shared:,} digests that both traces hold are equal")
        if moved:
            click.echo(f"though they are of another: {', '.join(moved)}")
    if shared == 0:
        return EXIT_INCONCLUSIVE
    return EXIT_DIFFERENT if found else EXIT_SAME


@click.command(
    epilog=example("deepinfer trace --out here.trace", "deepinfer trace batch/7-first --side right --out t")
)
@click.argument("case", required=False)
@model_option
@profile_option
@device_option
@threads_option
@click.option("--side", type=click.Choice(["left", "right"]), default="left", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@json_option
def trace(
    case: str | None,
    model: Path | None,
    profile: str,
    device: str,
    threads: int | None,
    side: str,
    out: Path,
    as_json: bool,
) -> int:
    """Write digests of every op of one run, row by row, to compare with another machine or version.

    Without CASE, 97 tokens of bundled prose are scored.
    """
    from deepinfer.verify.bisection import traced_run
    from deepinfer.verify.pack import fingerprint
    from deepinfer.verify.runner import model_digest
    from deepinfer.verify.size import Size
    from deepinfer.verify.trace_file import write_trace
    from deepinfer.verify.trial_run import follow
    from deepinfer.verify.written import require_folders

    require_folders(out)
    engine = engine_config(profile, device, threads=threads)
    context, chosen = _chosen(case or "batch/2-first", model, engine, Size.DEFAULT)
    left, digests = traced_run(context, chosen.left)
    if side == "right":
        _, digests = traced_run(context, follow(chosen.right, left))
    about = {
        "case": chosen.case_id,
        "side": side,
        "token_hash": chosen.token_hash,
        "profile": profile,
        "model_digest": model_digest(context),
        **fingerprint(),
    }
    write_trace(out, digests, about)
    drafted = [asdict(row) for row in digests.drafted]
    summary = {
        "digests": len(digests.digests),
        "tensors": len(digests.ranks),
        "file": str(out),
        "drafted_rows": drafted,
    }
    text = f"{len(digests.digests):,} digests of {len(digests.ranks)} tensors in {out}"
    if drafted:
        wrong = [str(row["position"]) for row in drafted if not row["is_accepted"]]
        text += f"\n{len(drafted)} drafted rows were verified, {len(drafted) - len(wrong)} stand"
        text += f"; computed again: positions {', '.join(wrong)}" if wrong else ""
    click.echo(json.dumps({**summary, **about}, default=str) if as_json else text)
    return EXIT_SAME


@click.command(epilog=example("deepinfer verify --pack failure.pack", "deepinfer replay failure.pack"))
@click.argument("pack", type=click.Path(path_type=Path, dir_okay=False))
@model_option
@threads_option
@json_option
def replay(pack: Path, model: Path | None, threads: int | None, as_json: bool) -> int:
    """Run the cases of a pack here, and say which still differ and which side has moved since.

    Exit codes: 0 nothing differs, 1 different, 2 usage, 5 undecided.
    """
    from deepinfer.verify.explain_text import render_replay
    from deepinfer.verify.live import open_context
    from deepinfer.verify.pack import read_pack
    from deepinfer.verify.pack import replay as replay_case

    packed = read_pack(pack)
    engine = packed.engine if threads is None else replace(packed.engine, num_threads=threads)
    context = open_context(model, engine)
    found = [replay_case(context, case) for case in packed.cases]
    documents = [item.to_dict() for item in found]
    text = "\n".join(render_replay(item) for item in found) or "the pack holds no case: nothing failed"
    click.echo(json.dumps(documents, indent=2, default=str) if as_json else text)
    if any(item.differs for item in found):
        return EXIT_DIFFERENT
    return EXIT_INCONCLUSIVE if not found or any(item.blocked for item in found) else EXIT_SAME
