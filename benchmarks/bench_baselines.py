"""Scale of the baseline store: check of many locked samples, ledger append, status of many keys.

    python -P benchmarks/bench_baselines.py [--samples 200000] [--tokens 200] [--keys 100000] [--folder DIR]

Everything is synthetic: no model runs. The store lies in a temporary folder of FOLDER, whose disk is part of
what the append figure measures. Peak memory is that of one process a figure.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from deepinfer.baselines.canonical import Sample
from deepinfer.baselines.committing import Author
from deepinfer.baselines.key import Key, Scope, digest_of_name
from deepinfer.baselines.store import Baselines
from deepinfer.baselines.summary import summarise

_GROUP = 1000
SCOPE = Scope(
    platform="portable",
    profile="strict",
    model_name="synthetic",
    model_digest=digest_of_name("synthetic"),
    workload_name="noise",
    workload_digest=digest_of_name("noise"),
)


def samples(count: int, length: int) -> Iterator[tuple[Key, Sample]]:
    """Random token ids and log-probabilities, the same on every call."""
    generator = np.random.default_rng(0)
    for index in range(count):
        token_ids = generator.integers(0, 129_000, length, dtype=np.int32)
        logprobs = -generator.standard_exponential(length, dtype=np.float32)
        yield Key(SCOPE, f"sample-{index:07d}"), Sample(token_ids=token_ids, logprobs=logprobs)


def lock(root: Path, count: int, length: int) -> dict[str, float]:
    """Lock everything once."""
    started_s = time.perf_counter()
    Baselines(root).writer(Author(reason="benchmark")).lock(samples(count, length))
    return {"seconds": time.perf_counter() - started_s}


def check(root: Path, count: int, length: int) -> dict[str, float]:
    """Check everything with two processes, every other thousand samples each; the slower one counts."""
    command = [sys.executable, "-P", __file__, "--task", "check_half", "--folder", str(root)]
    command += ["--samples", str(count), "--tokens", str(length), "--half"]
    halves = [subprocess.Popen([*command, half], stdout=subprocess.PIPE, text=True) for half in "01"]
    found = [json.loads(half.communicate()[0]) for half in halves]
    seconds = max(half["seconds"] for half in found)
    return {
        "seconds": seconds,
        "ledger_seconds": max(half["ledger_seconds"] for half in found),
        "logprobs_per_s": count * length / seconds,
        "peak_mib_each": max(half["peak_mib"] for half in found),
        "cpu_s_both": sum(half["cpu_s"] for half in found),
    }


def check_half(root: Path, count: int, length: int, half: int) -> dict[str, float]:
    """Check half of the samples; they are made beforehand in groups, which is not timed."""
    store = Baselines(root)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    store.state()
    ledger_s = seconds = time.perf_counter() - started_s
    cpu_s = time.process_time() - started_cpu_s
    source = samples(count, length)
    for number in range(-(-count // _GROUP)):
        group = list(itertools.islice(source, _GROUP))
        if number % 2 != half:
            continue
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        same = sum(store.check(key, s.token_ids, s.logprobs).is_same for key, s in group)
        seconds += time.perf_counter() - started_s
        cpu_s += time.process_time() - started_cpu_s
        assert same == len(group)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "ledger_seconds": ledger_s, "peak_mib": peak_mib, "cpu_s": cpu_s}


def status(root: Path, count: int, length: int) -> dict[str, float]:
    """Read the state of all keys and sum it up."""
    started_s = time.perf_counter()
    [row] = summarise(Baselines(root).state())
    assert row.num_locked == count
    return {"seconds": time.perf_counter() - started_s}


def append(root: Path, count: int, length: int) -> dict[str, float]:
    """Whole refreshes of one key each, and the part that extends the ledger: accepting what waits."""
    store = Baselines(root)
    writer = store.writer(Author(reason="benchmark"))
    store.state()
    refreshes, accepts = [], []
    for turn in range(100):
        moved = Sample(
            token_ids=np.arange(length, dtype=np.int32), logprobs=np.full(length, -turn - 1, dtype=np.float32)
        )
        key = Key(SCOPE, f"sample-{turn % count:07d}")
        started_s = time.perf_counter()
        writer.refresh([(key, moved)])
        middle_s = time.perf_counter()
        writer.accept([key])
        refreshes.append(middle_s - started_s)
        accepts.append(time.perf_counter() - middle_s)
    return {
        "refresh_median_ms": 1e3 * statistics.median(refreshes),
        "append_median_ms": 1e3 * statistics.median(accepts),
        "append_p95_ms": 1e3 * sorted(accepts)[94],
    }


TASKS = {"lock": lock, "check": check, "status": status, "append": append}


def in_a_process(task: str, root: Path, count: int, length: int) -> dict[str, float]:
    """Run one task in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, "-P", __file__, "--task", task, "--folder", str(root)]
    done = subprocess.run(
        [*command, "--samples", str(count), "--tokens", str(length)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    print(
        f"{task:<8} {count:>8,} x {length:<4}",
        "  ".join(f"{k} {v:,.3f}" for k, v in found.items()),
        flush=True,
    )
    return found


def main() -> None:
    """Run every figure, or one task in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--task", choices=[*TASKS, "check_half"])
    parser.add_argument("--half", type=int, default=0)
    given = parser.parse_args()
    if given.task == "check_half":
        print(json.dumps(check_half(given.folder, given.samples, given.tokens, given.half)))
        return
    if given.task:
        print(json.dumps(TASKS[given.task](given.folder, given.samples, given.tokens)))
        return
    place = Path(tempfile.mkdtemp(prefix="deepinfer-bench-", dir=given.folder))
    try:
        for count in (given.samples // 10, given.samples):
            in_a_process("lock", place / f"check-{count}", count, given.tokens)
            in_a_process("check", place / f"check-{count}", count, given.tokens)
        in_a_process("lock", place / "keys", given.keys, 2)
        in_a_process("status", place / "keys", given.keys, 2)
        in_a_process("append", place / "keys", given.keys, 2)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
