"""The figures of ``deepinfer bench`` as a results file: both profiles beside plain torch ops, one run.

.venv/bin/python -P benchmarks/bench_cpu.py [--threads 2] [--passes 5] [--out benchmarks/results/cpu_NAME.md]
"""

from __future__ import annotations

import argparse
import resource
from datetime import date
from pathlib import Path

from deepinfer.commands.bench import works
from deepinfer.engine.api import EngineConfig
from deepinfer.eval.bench import PLAIN, BenchConfig, BenchResult, Speed, run_bench
from deepinfer.eval.environment import describe_environment, processor_name


def report(result: BenchResult) -> str:
    """A Markdown page with what a reader needs to judge the figures."""
    environment = describe_environment()
    packages = environment["packages"]
    bench = result.bench
    lines = [
        f"# Speed on a CPU, bundled checkpoint, {date.today()}",
        "",
        f"{processor_name()}, {result.num_threads} threads, Python {environment['python']}, torch "
        f"{packages['torch']}, numba {packages['numba']}. `benchmarks/bench_cpu.py`: "
        f"{result.elapsed_s:.0f} s, "
        f"one process; {bench.num_passes} timed passes of each variant, taken in turn after a warm-up; "
        f"{bench.num_steps} steps a decode pass, from a context of {bench.prompt_tokens}.",
        "",
        "Tokens a second of the fastest pass, the median in brackets; ratios compare fastest passes. Plain "
        "is the same engine on plain torch ops, float32.",
        "",
        "| | strict | fast | plain | strict / plain | fast / plain |",
        "|---|---|---|---|---|---|",
    ]
    for work, speeds in works(result).items():
        strict, fast, plain = speeds["strict"], speeds["fast"], speeds[PLAIN]
        lines.append(
            f"| {work} | {_both(strict)} | {_both(fast)} | {_both(plain)} "
            f"| {strict.ratio_to(plain):.2f} | {fast.ratio_to(plain):.2f} |"
        )
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines += [
        "",
        f"Scheduler overhead at batch {max(bench.batches)}, profile {result.engine.profile}: "
        f"{result.scheduler_overhead:.1%} of a step. Peak memory of the process, two copies of the weights: "
        f"{peak_mib:.0f} MiB.",
    ]
    return "\n".join(lines) + "\n"


def _both(speed: Speed) -> str:
    return f"{speed.tokens_per_s:.0f} ({speed.median_tokens_per_s:.0f})"


def main() -> None:
    """Measure, print the page and write it to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--passes", type=int, default=BenchConfig().num_passes)
    parser.add_argument("--out", type=Path, help="write the page to this file too")
    options = parser.parse_args()
    bench = BenchConfig(num_passes=options.passes)
    page = report(run_bench(None, EngineConfig(num_threads=options.threads), bench))
    print(page)
    if options.out:
        options.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
