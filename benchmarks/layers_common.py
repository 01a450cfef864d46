"""What the sections of ``gpu_layers.py`` share: compiling ahead, timing, entries of the report."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "helpers")]

from compile_only import compile_only  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""The CPU serves a trial of the script in the interpreter."""
COPY = 4.27e12
"""Bytes a second of the largest copies seen on an H200, read plus written."""
MATRIX = 740e12
"""bf16 FLOP a second of the largest matrix products seen."""


@dataclass
class Report:
    """Facts of a run; kept as JSON, printed as Markdown."""

    deadline: float
    facts: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.deadline - time.perf_counter()

    def attempt(self, name: str, action: Callable[[], Any]) -> Any:
        """Run one measurement unless time is over; a failure is recorded and the run goes on."""
        if name in self.facts or self.left() < 0:
            return self.facts.get(name)
        try:
            self.facts[name] = action()
            print(f"{name}: {self.facts[name]}", flush=True)
        except Exception:
            self.failures[name] = traceback.format_exc(limit=-4)
            print(f"{name}: FAILED {self.failures[name].splitlines()[-1][:300]}", flush=True)
            if DEVICE == "cuda":
                torch.cuda.synchronize()  # raises if the context is lost: later figures would be worthless
        return self.facts.get(name)


def timed(launches: list[Callable[[], Any]], repeats: int) -> float:
    """Median seconds of one launch, over replays of a graph that holds ``repeats`` of them in rotation."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(repeats):
            launches[i % len(launches)]()
    graph.replay()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(5)]
    for start, end in marks:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in marks) / 1e3 / repeats


def against(seconds: float, num_bytes: float, flop: float) -> dict[str, float]:
    """Microseconds and the share of the larger of the memory and the matrix floor."""
    floor = max(num_bytes / COPY, flop / MATRIX)
    return {
        "us": round(seconds * 1e6, 2),
        "floor_us": round(floor * 1e6, 2),
        "memory_us": round(num_bytes / COPY * 1e6, 2),
        "matrix_us": round(flop / MATRIX * 1e6, 2),
        "ratio": round(floor / seconds, 3),
    }


def _job(job: tuple[Callable[..., None], tuple[Any, ...]]) -> str:
    try:
        job[0](*job[1])
    except Exception:
        return f"{job[0].__name__}{job[1]}: {traceback.format_exc(limit=-2)}"
    return ""


def compile_ahead(jobs: list[tuple[Callable[..., None], tuple[Any, ...]]], limit: float) -> list[str]:
    """Run launch functions where launches only compile, in processes, for ``limit`` seconds; give errors."""
    started, errors = time.perf_counter(), []
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), compile_only) as pool:
        results, done = pool.imap_unordered(_job, jobs), 0
        try:
            while done < len(jobs):
                errors.append(results.next(max(0.1, limit - (time.perf_counter() - started))))
                done += 1
        except multiprocessing.TimeoutError:
            errors.append(f"stopped after {limit:.0f} s")
        pool.terminate()
    print(f"compiled {done} of {len(jobs)} jobs in {time.perf_counter() - started:.0f} s", flush=True)
    errors = [error for error in errors if error]
    for error in errors:
        print(error[-600:])
    return errors
