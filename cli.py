"""The ``deepinfer`` command: options become a config, one call is made, its verdict becomes the exit code.

Rooms are imported inside the commands, so that ``--help`` stays instant.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from deepinfer import __version__
from deepinfer.commands.baseline import baseline
from deepinfer.commands.bench import bench
from deepinfer.commands.doctor import doctor
from deepinfer.commands.failing_case import bisect, replay, trace
from deepinfer.commands.generate import generate
from deepinfer.commands.group import CommandGroup
from deepinfer.commands.options import (
    engine_config,
    engine_options,
    example,
    json_option,
    model_option,
)
from deepinfer.commands.progress import progress_display
from deepinfer.commands.report import report
from deepinfer.commands.verify import verify


@click.group(
    cls=CommandGroup,
    context_settings={"auto_envvar_prefix": "DEEPINFER", "help_option_names": ["-h", "--help"]},
    epilog=example("deepinfer verify", "DEEPINFER_VERIFY_THREADS=1 deepinfer verify --check batch"),
)
@click.version_option(__version__, prog_name="deepinfer")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:  # CommandGroup reads --debug from the context
    """Batch-invariant inference, perplexity and bitwise verification.

    Any option can come from the environment: DEEPINFER_<COMMAND>_<OPTION>.
    """


@main.command(epilog=example("deepinfer inspect", "deepinfer inspect --json"))
@model_option
@json_option
def inspect(model: Path | None, as_json: bool) -> None:
    """Print components, parameter counts and bytes of a checkpoint, without loading it.

    A config.json alone is enough: the counts then come from the architecture.
    """
    from deepinfer.engine.bundled import bundled_model_dir
    from deepinfer.engine.inspection import inspect_model
    from deepinfer.engine.inspection_text import render_summary

    summary = inspect_model(model or bundled_model_dir())
    click.echo(json.dumps(summary.to_dict(), indent=2) if as_json else render_summary(summary))


@main.command(
    epilog=example(
        """echo '{"id": "a", "token_ids": [0, 17, 4]}' > ids.jsonl""",
        "deepinfer score --tokens ids.jsonl --out run",
    )
)
@model_option
@click.option(
    "--tokens",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="JSON lines {id, token_ids}; no begin token is added.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Run folder; an interrupted one goes on."
)
@click.option("--top", type=click.IntRange(min=0), default=0, help="Most likely tokens to store.")
@click.option(
    "--logits",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write full logits, one float32 tensor a sample, to this safetensors file.",
)
@engine_options
@json_option
def score(
    model: Path | None,
    tokens: Path,
    out: Path,
    top: int,
    logits: Path | None,
    as_json: bool,
    **engine: Any,
) -> int:
    """Write the log-probability of every given token to a run folder.

    A sample that cannot be run fails in its own place; the others are scored, and the exit code is 2.
    """
    from deepinfer.eval.engines.native import NativeScorer
    from deepinfer.eval.report import render_score
    from deepinfer.eval.score import ScoreConfig, score_file

    config = ScoreConfig(tokens=tokens, out=out, num_top=top, logits=logits)
    scorer = NativeScorer(model, engine_config(**engine))
    with progress_display() as progress:
        report = score_file(scorer, config, progress)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else render_score(report))
    return report.exit_code


@main.command(
    "eval",
    epilog=example(
        "deepinfer eval",
        "deepinfer eval --workload code --policy disjoint:512 --policy half:512 --max-tokens 1024 --out run",
    ),
)
@model_option
@click.option(
    "--workload",
    multiple=True,
    default=("prose",),
    show_default=True,
    metavar="NAME|FILE",
    help="prose, technical, code, longctx, unicode, FILE.jsonl or FILE.txt; repeatable.",
)
@click.option(
    "--policy",
    multiple=True,
    metavar="POLICY",
    help="disjoint[:N], strided[:N:S], half[:N] or document; repeatable.  [default: strided]",
)
@click.option("--context", type=click.IntRange(min=1), help="Ids of a window, N above.  [default: 512]")
@click.option(
    "--stride", type=click.IntRange(min=1), help="Step of strided windows, S above.  [default: N/2]"
)
@click.option("--max-tokens", type=click.IntRange(min=1), help="Score only the first tokens of each text.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Run folder to keep; an interrupted one goes on."
)
@engine_options
@json_option
def evaluate_command(
    model: Path | None,
    workload: tuple[str, ...],
    policy: tuple[str, ...],
    context: int | None,
    stride: int | None,
    max_tokens: int | None,
    out: Path | None,
    as_json: bool,
    **engine: Any,
) -> int:
    """Measure the perplexity of texts: per token, word and byte, with errors clustered by document.

    Exit codes: 0 measured, 2 a text could not be scored, 5 a log-probability is not finite.
    """
    from deepinfer.eval.engines.native import NativeScorer
    from deepinfer.eval.evaluate import EvalConfig, evaluate
    from deepinfer.eval.report import render_eval

    config = EvalConfig(
        workloads=workload, policies=policy, context=context, stride=stride, max_tokens=max_tokens, out=out
    )
    scorer = NativeScorer(model, engine_config(**engine))
    with progress_display() as progress:
        result = evaluate(scorer, config, progress)
    click.echo(json.dumps(result.to_dict(), indent=2) if as_json else render_eval(result))
    return result.exit_code


@main.command(
    epilog=example(
        "deepinfer eval --workload unicode --out run-a",
        "deepinfer eval --workload unicode --out run-b --threads 1",
        "deepinfer compare run-a run-b",
    )
)
@click.argument("run_a", type=click.Path(path_type=Path, file_okay=False))
@click.argument("run_b", type=click.Path(path_type=Path, file_okay=False))
@click.option("--tolerance", is_flag=True, help="Test for a regression of perplexity; bits may differ.")
@click.option(
    "--max-z", type=float, help="With --tolerance: the z above which a test is significant.  [default: 3]"
)
@click.option("--max-increase", type=float, help="With --tolerance: the growth allowed.  [default: 0.001]")
@json_option
def compare(
    run_a: Path,
    run_b: Path,
    tolerance: bool,
    max_z: float | None,
    max_increase: float | None,
    as_json: bool,
) -> int:
    """Say whether two runs of the same tokens are the same, where they first differ and by how much.

    Exit codes: 0 same, 1 different, 2 not comparable, 5 inconclusive.
    """
    from deepinfer.eval.compare import CompareConfig, compare_runs
    from deepinfer.eval.report import render_comparison

    given = {"max_z": max_z, "max_increase": max_increase}
    limits = {name: value for name, value in given.items() if value is not None}
    comparison = compare_runs(run_a, run_b, CompareConfig(tolerance=tolerance, **limits))
    click.echo(json.dumps(comparison.to_dict(), indent=2) if as_json else render_comparison(comparison))
    return comparison.exit_code


for command in (verify, bisect, trace, replay, report, baseline, generate, doctor, bench):
    main.add_command(command)


if __name__ == "__main__":
    main()
