"""Runs ``deepinfer verify --quick`` again and again and compares the reports: the same JSON but for times.

    .venv/bin/python -P benchmarks/repeat_verify_quick.py [--runs 60] [--out FILE.md]

A quarter of the runs each on 1 and 2 threads, with and without a process that keeps a core busy. Every run is
a process of its own. Exit code 0 if all reports are the same.
"""

from __future__ import annotations

import argparse
import json
import re
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


def main() -> int:
    """Run, print, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ways = [(1, False), (2, False), (1, True), (2, True)]
    reports: Counter[str] = Counter()
    times: dict[tuple[int, bool], list[float]] = {way: [] for way in ways}
    for number in range(options.runs):
        way = ways[number * len(ways) // options.runs]
        report, seconds = one_run(*way)
        reports[report] += 1
        times[way].append(seconds)
        print(
            f"run {number + 1}: {way[0]} threads, load {way[1]}, {seconds:.1f} s", file=sys.stderr, flush=True
        )
    verdicts = Counter(json.loads(r)["verdict"] if r.startswith("{") else r for r in reports.elements())
    lines = ["| threads | load beside it | runs | seconds, fastest | slowest |", "|---|---|---:|---:|---:|"]
    for (threads, loaded), taken in times.items():
        if taken:
            beside = "one busy process" if loaded else "none"
            figures = f"{len(taken)} | {min(taken):.1f} | {max(taken):.1f}"
            lines.append(f"| {threads} | {beside} | {figures} |")
    lines += ["", f"{len(reports)} different reports in {options.runs} runs; verdicts: {dict(verdicts)}"]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    return 0 if len(reports) == 1 and set(verdicts) == {"same"} else 1


if __name__ == "__main__":
    sys.exit(main())
