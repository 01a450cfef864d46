"""Random traffic with speculation and asynchrony against each request alone, in as many processes as cores.

PYTHONPATH=.links:tests/helpers python3 -P benchmarks/soak_speculation.py --requests 2000 --out build

Traces ``seed``, ``seed + 1``, ... until so many requests were played or ``--seconds`` have gone; counts in
one file ``soak_speculation_<seed>.json``, written anew after every trace. Exit status 1 if a byte differs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from soak_play import Tally, soaked

import deepinfer
from deepinfer.engine.api import EngineConfig
from deepinfer.engine.llm import LLM

ROOT = Path(deepinfer.__file__).parent


@lru_cache(maxsize=1)
def small_model() -> LLM:
    """The small reference checkpoint, once a process; one thread, since every core has a process."""
    return LLM(ROOT / "tests" / "data" / "golden" / "ckpt_A_quantized", EngineConfig(num_threads=1))


def one(seed: int) -> Tally:
    """One trace in a process of the pool."""
    return soaked(small_model(), seed)


def tallies(first: int, requests: int, processes: int, ends_at_s: float) -> Iterator[Tally]:
    """Traces from ``first`` on as they are done, at least as many as have ``requests`` requests."""
    yield one(first)  # compiles what is not in the cache, before anybody else does
    with multiprocessing.get_context("spawn").Pool(processes) as pool:  # ended with whatever still runs
        done = pool.imap_unordered(one, range(first + 1, first + 1 + requests))
        while True:
            try:
                yield done.next(timeout=max(0.1, ends_at_s - time.monotonic()))
            except (StopIteration, multiprocessing.TimeoutError):
                return


def main() -> int:
    """Play, count, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=5000, help="first trace")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--out", type=Path, default=Path("build"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"soak_speculation_{given.seed}.json"
    began_s, total = time.monotonic(), Tally()
    for found in tallies(given.seed, given.requests, given.processes, began_s + given.seconds):
        total.add(found)
        document = {**asdict(total), "first_seed": given.seed, "processes": given.processes}
        document["elapsed_s"] = round(time.monotonic() - began_s, 1)
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(f"{document['elapsed_s']} s: {total.traces} traces, {total.requests} requests", flush=True)
        if total.requests >= given.requests:
            break
    print(file.read_text(encoding="utf-8"))
    return int(bool(total.failures or total.differing_records or total.differing_logits_rows))


if __name__ == "__main__":
    sys.exit(main())
