"""Runs ``deepinfer verify --quick`` again and again and compares the reports: the same JSON but for times.

    .venv/bin/python -P benchmarks/repeat_verify_quick.py [--runs 60] [--out FILE.md]

In parts, so that the first can have the machine to itself and the second need not:

    ... --runs 30 --load none --reports build/quick.json
    ... --runs 30 --load busy --reports build/quick.json --out FILE.md

A quarter of the runs each on 1 and 2 threads, with and without a process that keeps a core busy. Every run is
a process of its own. Exit code 0 if all reports are the same.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

COMMAND = [
    sys.executable,
    "-P",
    "-c",
    "from deepinfer.cli import main; main()",
    "verify",
    "--quick",
    "--json",
]
BUSY = [sys.executable, "-c", "while True: pass"]


def without_times(value: Any) -> Any:
    """The report without anything that a clock or the thread option put there."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in {"seconds", "threads"}}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    return re.sub(r"after \d+\.\d s", "after some time", value) if isinstance(value, str) else value


def one_run(threads: int, loaded: bool) -> tuple[str, float]:
    """The report of one run, without times, and the seconds it took."""
    busy = subprocess.Popen(BUSY) if loaded else None
    started_s = time.perf_counter()
    try:
        done = subprocess.run(
            [*COMMAND, "--threads", str(threads)], capture_output=True, text=True, check=False
        )
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    seconds = time.perf_counter() - started_s
    if done.returncode not in (0, 1, 5):
        return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1]}", seconds
    return json.dumps(without_times(json.loads(done.stdout)), sort_keys=True), seconds


def earlier_runs(path: Path | None) -> list[dict[str, Any]]:
    """Runs that an earlier call kept."""
    if path is None or not path.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return runs


def main() -> int:
    """Run, print, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--load", choices=("none", "busy"), help="only without, or only with, a busy process")
    parser.add_argument("--reports", type=Path, help="go on from the reports in this file, and add to it")
    parser.add_argument("--threads", type=int, choices=(1, 2), help="only runs with this many threads")
    options = parser.parse_args()
    ways = [(1, False), (2, False), (1, True), (2, True)]
    if options.load is not None:
        ways = [way for way in ways if way[1] == (options.load == "busy")]
    if options.threads is not None:
        ways = [way for way in ways if way[0] == options.threads]
    done = earlier_runs(options.reports)
    for number in range(options.runs):
        way = ways[number * len(ways) // options.runs]
        report, seconds = one_run(*way)
        done.append({"threads": way[0], "loaded": way[1], "seconds": seconds, "report": report})
        if options.reports is not None:
            options.reports.write_text(json.dumps(done), encoding="utf-8")
        print(
            f"run {number + 1}: {way[0]} threads, load {way[1]}, {seconds:.1f} s", file=sys.stderr, flush=True
        )
    reports = Counter(str(run["report"]) for run in done)
    times: dict[tuple[int, bool], list[float]] = {}
    for run in done:
        times.setdefault((run["threads"], run["loaded"]), []).append(run["seconds"])
    verdicts = Counter(json.loads(r)["verdict"] if r.startswith("{") else r for r in reports.elements())
    lines = [
        "| threads | load beside it | runs | seconds, fastest | median | slowest |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for (threads, loaded), taken in times.items():
        beside = "one busy process" if loaded else "none"
        figures = f"{len(taken)} | {min(taken):.1f} | {statistics.median(taken):.1f} | {max(taken):.1f}"
        lines.append(f"| {threads} | {beside} | {figures} |")
    lines += ["", f"{len(reports)} different reports in {len(done)} runs; verdicts: {dict(verdicts)}"]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return 0 if len(reports) == 1 and set(verdicts) == {"same"} else 1


if __name__ == "__main__":
    sys.exit(main())
