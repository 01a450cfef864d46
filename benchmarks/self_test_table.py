"""``deepinfer verify --self-test`` on a large machine: every seeded fault in a process of its own.

    .venv/bin/python -P benchmarks/self_test_table.py --jobs 8 --out OUT [--budget S] [--resume FILE.json]

Writes OUT/self_test.json and OUT/self_test.md. Each process keeps to one core, from the last core
downwards. What the budget does not allow is left for a call with ``--resume``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ONE = """
import json, sys
from deepinfer.verify.self_test import FAULTS, self_test
[record] = self_test(faults=[fault for fault in FAULTS if fault.name == sys.argv[1]])
json.dump(record.to_dict(), sys.stdout)
"""


def started(name: str, cores: set[int]) -> subprocess.Popen[str]:
    """The process of one fault, on these cores."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", ONE, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the process found, or why it did not."""
    out, err = process.communicate()
    if process.returncode == 0:
        return dict(json.loads(out))
    return {"error": f"exit code {process.returncode}: {err.strip().splitlines()[-1:]}"}


def run(names: list[str], jobs: int, deadline: float, keep: Any) -> None:
    """Run the faults in order, ``jobs`` at a time, until the deadline."""
    cores = sorted(os.sched_getaffinity(0))
    places = [{cores[-1 - job % len(cores)]} for job in range(jobs)]
    running: dict[str, tuple[subprocess.Popen[str], set[int]]] = {}
    waiting = list(names)
    while (waiting or running) and time.monotonic() < deadline:
        while waiting and places:
            name, place = waiting.pop(0), places.pop(0)
            running[name] = started(name, place), place
        for name, (process, place) in list(running.items()):
            if process.poll() is not None:
                keep(name, ended(process))
                places.append(place)
                del running[name]
        time.sleep(0.2)
    for name, (process, _) in running.items():
        process.kill()
        process.communicate()
        print(f"{name}: not done in time", flush=True)


def table(records: dict[str, Any], names: list[str]) -> str:
    """Markdown."""
    lines = [
        "| fault | check | found | named | expected | 1-minimal | smallest case | s |",
        "|---|---|---|---|---|---|---|---:|",
    ]
    for name in names:
        r = records.get(name)
        if r is None or "error" in r:
            lines.append(f"| {name} | | {'not run' if r is None else r['error']} | | | | | |")
            continue
        found, minimal = ("yes" if r[key] else "no" for key in ("detected", "is_minimal"))
        lines.append(
            f"| {name} | {r['check'] or '(none can)'} | {found} | {r['named'] or '-'} "
            f"| {r['expected'] or '-'} | {minimal if r['smallest'] else '-'} | {r['smallest']} "
            f"| {r['seconds']:.0f} |"
        )
    good = [r for r in records.values() if "error" not in r]
    lines += [
        "",
        f"{len(good)} of {len(names)} faults run, {sum(r['detected'] for r in good)} found, "
        f"{sum(bool(r['expected']) and r['as_expected'] for r in good)} named by bisect as expected, "
        f"{sum(r['is_minimal'] for r in good)} shrunk to a 1-minimal case; "
        f"not as expected: {', '.join(r['fault'] for r in good if not r['as_expected']) or 'none'}",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run what is missing, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    from deepinfer.verify.self_test import FAULTS

    deadline = time.monotonic() + options.budget
    names = [fault.name for fault in FAULTS]
    slow_first = sorted(FAULTS, key=lambda fault: fault.check not in ("prefix", "preemption"))
    records: dict[str, Any] = json.loads(options.resume.read_text()) if options.resume else {}
    options.out.mkdir(parents=True, exist_ok=True)

    def keep(name: str, record: dict[str, Any]) -> None:
        records[name] = record
        (options.out / "self_test.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
        print(f"{name}: {record.get('named') or record.get('error') or record.get('detected')}", flush=True)

    run([f.name for f in slow_first if f.name not in records], options.jobs, deadline, keep)
    text = table(records, names)
    (options.out / "self_test.md").write_text(text, encoding="utf-8")
    print(text.rsplit("\n\n", 1)[-1])
    complete = all(name in records and records[name].get("as_expected") for name in names)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
