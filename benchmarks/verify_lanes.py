"""``deepinfer verify --thorough`` on a large machine: checks in lanes, each on cores of its own.

    .venv/bin/python -P benchmarks/verify_lanes.py --cores 0-11 --out OUT [--budget S]
    ... --device cuda --profile fast

Writes OUT/verify_thorough.json, a record a check, and OUT/verify_thorough.md. A lane keeps to two cores; what
a lane did not finish within the budget is missing, and said so. A CUDA device is shared by all lanes: a check
waits for its host most of the time.
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

LANES = (
    ("reference",),
    ("grid", "nonfinite"),
    ("profiles", "packing", "decode"),
    ("prefix", "kernels"),
    ("batch", "baselines"),
    ("graphs", "yoco-metadata"),
    ("yoco-logprobs", "chunks"),
    ("rerun", "threads"),
    ("preemption", "process", "seeds"),
    ("speculation", "asynchrony", "yoco-confidence"),
)
COMMAND = [
    sys.executable,
    "-P",
    "-c",
    "from deepinfer.cli import main; main()",
    "verify",
    "--thorough",
    "--json",
]


def started(lane: tuple[str, ...], cores: set[int], where: list[str]) -> subprocess.Popen[str]:
    """The process of one lane."""
    asked = [name for name in lane if name != "threads" or "cpu" in where]  # a device has none of ours
    checks = [word for name in asked for word in ("--check", name)]
    return subprocess.Popen(
        [*COMMAND, *where, *checks],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def cores_of(text: str) -> list[int]:
    """``0-3`` as numbers."""
    first, last = text.split("-")
    return list(range(int(first), int(last) + 1))


def main() -> int:
    """Run the lanes, two cores each; 0 if every check is the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", default=f"0-{(os.cpu_count() or 2) - 1}")
    parser.add_argument("--budget", type=float, default=3600.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", default="strict")
    options = parser.parse_args()
    where = ["--device", options.device, "--profile", options.profile]
    cores = cores_of(options.cores)
    deadline, started_s = time.monotonic() + options.budget, time.perf_counter()
    records: dict[str, Any] = {}
    places = [set(cores[i : i + 2]) for i in range(0, len(cores) - 1, 2)]
    waiting, running = list(LANES), {}
    options.out.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and places:
            place = places.pop(0)
            running[waiting[0]] = started(waiting[0], place, where), place
            waiting.pop(0)
        for lane, (process, place) in list(running.items()):
            out, err, left = "", "", deadline - time.monotonic()
            try:
                out, err = process.communicate(timeout=min(1.0, max(left, 0.1)))
            except subprocess.TimeoutExpired:
                if left > 0:
                    continue
                process.kill()
                process.communicate()
                err = "not done in time"
            del running[lane]
            places.append(place)
            if process.returncode in (0, 1, 5):
                records |= {check["name"]: check for check in json.loads(out)["checks"]}
                print(f"{' '.join(lane)}: {process.returncode}", flush=True)
            else:
                print(f"{' '.join(lane)}: {(err.strip().splitlines() or ['no message'])[-1]}", flush=True)
    (options.out / "verify_thorough.json").write_text(json.dumps(records, indent=1), encoding="utf-8")
    lines = ["| check | verdict | comparisons | values looked at | s |", "|---|---|---:|---:|---:|"]
    for name in (name for lane in LANES for name in lane):
        r = records.get(name)
        if r is None:
            lines.append(f"| {name} | not run | | | |")
        else:
            counts = f"{r['num_comparisons']:,} | {r['num_inspected']:,}"
            lines.append(f"| {name} | {r['status']} | {counts} | {r['seconds']:.0f} |")
    total = sum(r["num_comparisons"] for r in records.values())
    lines += ["", f"{len(records)} checks, {total:,} comparisons in {time.perf_counter() - started_s:.0f} s"]
    text = "\n".join(lines) + "\n"
    (options.out / "verify_thorough.md").write_text(text, encoding="utf-8")
    print(text)
    complete = len(records) == sum(map(len, LANES)) - (options.device != "cpu")
    return 0 if complete and all(r["status"] == "same" for r in records.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
