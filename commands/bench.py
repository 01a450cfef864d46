"""``deepinfer bench``: prints what ``eval.bench`` measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer.commands.options import engine_config, engine_options, example, json_option, model_option
from deepinfer.commands.progress import progress_display
from deepinfer.engine.api import Device

if TYPE_CHECKING:
    from deepinfer.eval.bench import BenchResult, Speeds


@click.command(
    epilog=example(
        "deepinfer bench",
        "deepinfer bench --profile fast --context 512 --json",
        "deepinfer bench --speculation",
    )
)
@model_option
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Tokens of each scored or prefilled sequence.",
)
@click.option("--speculation", is_flag=True, help="Measure drafts instead: speed, acceptance, calibration.")
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1,),
    show_default=True,
    help="Sequences that decode together, with --speculation.  Repeatable.",
)
@engine_options
@json_option
def bench(
    model: Path | None,
    context: int,
    speculation: bool,
    batches: tuple[int, ...],
    as_json: bool,
    **engine: Any,
) -> None:
    """Measure scoring, prefill and decoding, each beside plain torch ops in the same run.

    Less than a minute on two cores; the first run also compiles the kernels. Both profiles are measured; the
    one chosen is the headline of the JSON. Figures of a busy machine mean little.
    """
    if speculation:
        _bench_speculation(model, batches, as_json, engine)
        return
    from deepinfer.eval.bench import BenchConfig, run_bench

    with progress_display() as progress:
        result = run_bench(model, engine_config(**engine), BenchConfig(context=context), progress)
    click.echo(json.dumps(to_document(result), indent=2) if as_json else render(result))


def _bench_speculation(
    model: Path | None, batches: tuple[int, ...], as_json: bool, engine: dict[str, Any]
) -> None:
    from deepinfer.commands import bench_speculation as report
    from deepinfer.eval.bench_speculation import SpeculationBench, run_speculation_bench

    with progress_display() as progress:
        bench = SpeculationBench(batches=tuple(sorted(set(batches))))
        result = run_speculation_bench(model, engine_config(**engine), bench, progress)
    click.echo(json.dumps(report.to_document(result), indent=2) if as_json else report.render(result))


def to_document(result: BenchResult) -> dict[str, Any]:
    """JSON values; the names of the figures are a stable interface."""
    from deepinfer.eval.environment import describe_environment, processor_name

    bench, engine = result.bench, result.engine
    headline = engine.profile.value
    at_context = {"context": bench.context, "num_sequences": bench.num_sequences}
    steps = {"prompt_tokens": bench.prompt_tokens, "num_steps": bench.num_steps}
    return {
        "environment": {**describe_environment(), "processor": processor_name()},
        "profile": headline,
        "cache_format": engine.cache_format.value,
        "prefill_mode": engine.prefill.value,
        "num_threads": result.num_threads,
        "num_passes": bench.num_passes,
        "scoring": _figures(result.scoring, headline) | at_context,
        "prefill": _figures(result.prefill, headline) | at_context,
        "decode": {str(batch): _figures(speeds, headline) | steps for batch, speeds in result.decode.items()},
        "scheduler_overhead": result.scheduler_overhead,
        "elapsed_s": result.elapsed_s,
    }


def _figures(speeds: Speeds, headline: str) -> dict[str, Any]:
    """Figures of the headline profile, and of every profile under its name."""
    from deepinfer.eval.bench import PLAIN

    plain = speeds[PLAIN]
    by_profile = {
        name: {
            "tokens_per_s": speed.tokens_per_s,
            "median_tokens_per_s": speed.median_tokens_per_s,
            "ratio_to_plain": speed.ratio_to(plain),
        }
        for name, speed in speeds.items()
        if name != PLAIN
    }
    beside = {
        "plain_tokens_per_s": plain.tokens_per_s,
        "plain_median_tokens_per_s": plain.median_tokens_per_s,
    }
    return by_profile[headline] | beside | by_profile


def works(result: BenchResult) -> dict[str, Speeds]:
    """What was measured, in words -> its speeds."""
    bench = result.bench
    at_context = f"{bench.num_sequences} x {bench.context} tokens"
    decode = {f"decode, batch {batch}": speeds for batch, speeds in result.decode.items()}
    return {f"scoring, {at_context}": result.scoring, f"prefill, {at_context}": result.prefill} | decode


def plain_ops(result: BenchResult) -> str:
    """What the plain path runs on, in words."""
    if result.engine.device is Device.CPU:
        return "the reference ops, float32"
    return "cuBLAS and torch where they have a kernel, bfloat16, not batch-invariant"


def render(result: BenchResult) -> str:
    """A table, and what a reader needs to judge it."""
    from deepinfer.eval.bench import PLAIN
    from deepinfer.eval.environment import processor_name
    from deepinfer.eval.report import render_table

    rows = []
    for work, speeds in works(result).items():
        strict, fast, plain = speeds["strict"], speeds["fast"], speeds[PLAIN]
        figures = [f"{speed.tokens_per_s:.0f}" for speed in (strict, fast, plain)]
        rows.append([work, *figures, f"{strict.ratio_to(plain):.2f}", f"{fast.ratio_to(plain):.2f}"])
    heading = ["tokens per second", "strict", "fast", "plain torch", "strict/plain", "fast/plain"]
    overhead = f"{result.scheduler_overhead:.1%} of a step, profile {result.engine.profile}"
    return "\n".join(
        [
            f"{result.num_threads} threads, {processor_name()}, {result.elapsed_s:.0f} s in all",
            *render_table(heading, rows),
            f"scheduler overhead at batch {max(result.bench.batches)}: {overhead}",
            f"fastest of {result.bench.num_passes} passes, taken in turn after a warm-up; plain torch: the "
            f"same engine on {plain_ops(result)}",
        ]
    )
