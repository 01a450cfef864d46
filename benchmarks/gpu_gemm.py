"""bf16 GEMM of profile fast against cuBLAS: which static tiles are fastest, and do rows keep their bits?

    python3 -P benchmarks/gpu_gemm.py --out FOLDER [--budget 450]      # on the device; torch and triton alone

For every weight shape and every split of K that the table below allows, every tile candidate is checked
(float32 outputs, all rows, against the first candidate of that split) and timed beside ``torch.mm``: a CUDA
graph over weight copies that together exceed the second-level cache, median of replays. Only candidates with
the bits of the others can be chosen. One split per shape serves all M: the choice with the best geometric
mean is printed. Finished shapes in ``gpu_gemm.json`` are not measured again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "helpers")]

from compile_only import compile_only  # noqa: E402
from gemm_report import ROWS, choose, report  # noqa: E402

from deepinfer.kernels.gpu.gemm import BY_LAST, BY_SECOND, IN_LOOP, Tile, Workspace, gemm  # noqa: E402
from deepinfer.kernels.gpu.launching import ceil_div  # noqa: E402

CHUNKS = {
    (1280, 5120): (5120, 2560, 1280, 640, 384),
    (32768, 1280): (1280, 640),
    (512, 5120): (2560, 1280, 640, 384, 256),
    (5120, 8192): (8192, 4096, 2048),
    (2304, 5120): (5120, 2560, 1280, 768),
    (5120, 2304): (2304, 1152, 768),
    (129280, 5120): (5120,),
}
"""(N, K) -> lengths of a chunk of K to try."""
DECODE = ((64, 16, 128, 4, 4), (64, 16, 128, 6, 4), (64, 16, 64, 8, 4), (128, 16, 128, 4, 4))
MIDDLE = (
    (64, 64, 128, 4, 4),
    (64, 64, 64, 6, 4),
    (128, 64, 64, 5, 4),
    (128, 64, 128, 3, 8),
    (128, 64, 64, 5, 8),
)
PREFILL = (
    (64, 128, 64, 5, 4),
    (128, 128, 64, 4, 4),
    (128, 128, 64, 4, 8),
    (128, 128, 128, 3, 8),
    (128, 256, 64, 3, 8),
    (128, 256, 64, 4, 8),
    (256, 128, 64, 3, 8),
    (64, 256, 64, 4, 4),
)
COPIED_BYTES = 300 << 20  # weights in rotation: several times the second-level cache


def candidates(num_rows: int, chunks: int) -> list[Tile]:
    """Tiles for a bucket; split ways only where there is something to split."""
    shapes = DECODE if num_rows <= 16 else MIDDLE if num_rows <= 64 else PREFILL
    if chunks == 1:
        ways: tuple[int, ...] = (IN_LOOP,)
    elif num_rows <= 16:
        ways = (BY_LAST, BY_SECOND)
    elif num_rows <= 64:
        ways = (BY_LAST, BY_SECOND, IN_LOOP) if chunks <= 4 else (BY_LAST, BY_SECOND)
    else:
        ways = (IN_LOOP,)
    tiles = [Tile(*shape, way=way) for way in ways for shape in shapes]
    if chunks > 1 and num_rows == 512:
        tiles += [Tile(*shape, way=way) for way in (BY_LAST, BY_SECOND) for shape in (PREFILL[0], PREFILL[2])]
    return tiles


def _compile(job: tuple[int, Tile, str]) -> str:
    """Compile one variant; returns an error, or nothing."""
    chunks, tile, kind = job
    workspace = Workspace.on(torch.device("cpu"), 1 << 22, 1 << 12)
    x, w = (
        torch.empty(16, 128 * chunks, dtype=torch.bfloat16),
        torch.empty(256, 128 * chunks, dtype=torch.bfloat16),
    )
    try:
        gemm(x, w, torch.empty(16, 256, dtype=getattr(torch, kind)), 128, tile, workspace)
    except Exception:
        return f"{job}: {traceback.format_exc(limit=-1)}"
    return ""


def compile_all(wanted: list[tuple[int, int]]) -> None:
    """Compile every variant of the wanted shapes on all cores."""
    jobs = {
        (ceil_div(shape[1], chunk), tile, kind)
        for shape in wanted
        for chunk in CHUNKS[shape]
        for num_rows in ROWS
        for tile in candidates(num_rows, ceil_div(shape[1], chunk))
        for kind in ("bfloat16", "float32")
    }
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), compile_only) as pool:
        errors = [error for error in pool.imap_unordered(_compile, sorted(jobs, key=str), 4) if error]
    print(f"compiled {len(jobs)} variants in {time.perf_counter() - started:.0f} s, {len(errors)} failed")
    for error in errors[:5]:
        print(error)


def timed(launches: list[Any], repeats: int) -> float:
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


class Shape:
    """One weight shape on the device."""

    def __init__(self, num_outputs: int, depth: int) -> None:
        """Random operands; the weight in as many copies as outgrow the cache."""
        torch.manual_seed(num_outputs)
        self.n, self.k = num_outputs, depth
        weight = torch.randn(num_outputs, depth, device="cuda", dtype=torch.bfloat16)
        copies = min(64, max(2, ceil_div(COPIED_BYTES, 2 * weight.numel())))
        self.weights = [weight] + [weight.clone() for _ in range(copies - 1)]
        self.x = torch.randn(max(ROWS), depth, device="cuda", dtype=torch.bfloat16)
        self.workspace = Workspace.on(torch.device("cuda"))

    def repeats(self, num_rows: int) -> int:
        """Launches of about 4 ms."""
        floor = max(2 * self.n * self.k / 4e12, 2 * num_rows * self.n * self.k / 7e14) + 4e-6
        return max(2, min(60, int(4e-3 / floor)))

    def cublas(self, num_rows: int) -> float:
        """Seconds of ``torch.mm``."""
        x, out = self.x[:num_rows], torch.empty(num_rows, self.n, device="cuda", dtype=torch.bfloat16)
        calls = [lambda w=w: torch.mm(x, w.t(), out=out) for w in self.weights]
        return timed(calls, self.repeats(num_rows))

    def ours(self, num_rows: int, chunk: int, tile: Tile) -> float:
        """Seconds of one candidate."""
        x, out = self.x[:num_rows], torch.empty(num_rows, self.n, device="cuda", dtype=torch.bfloat16)
        calls = [lambda w=w: gemm(x, w, out, chunk, tile, self.workspace) for w in self.weights]
        return timed(calls, self.repeats(num_rows))

    def rows_of(self, low: int, high: int, chunk: int, tile: Tile) -> torch.Tensor:
        """float32 outputs of rows ``low .. high`` in a launch of their own, over poisoned memory."""
        out = torch.full((high - low, self.n), float("nan"), device="cuda")
        return gemm(self.x[low:high], self.weights[0], out, chunk, tile, self.workspace)

    def error(self, outputs: torch.Tensor) -> float:
        """Relative error of the first rows against float64."""
        few = min(len(outputs), 8)
        exact = self.x[:few].double() @ self.weights[0].double().T
        return float((outputs[:few].double() - exact).norm() / exact.norm())


def measure_chunk(shape: Shape, chunk: int, deadline: float) -> dict[str, Any]:
    """All candidates of one split: errors, bits, times."""
    chunks = ceil_div(shape.k, chunk)
    found: dict[str, Any] = {"chunks": chunks, "rows": {}}
    witness: torch.Tensor | None = None
    for num_rows in reversed(ROWS):
        entries = []
        for tile in candidates(num_rows, chunks):
            if time.perf_counter() > deadline:
                return found | {"cut_short": True}
            entry: dict[str, Any] = {"tile": asdict(tile)}
            try:
                limit = num_rows if shape.n < 100_000 else min(num_rows, 2048)  # float32 outputs of 4 GB
                outputs = shape.rows_of(0, limit, chunk, tile)
                witness = outputs if witness is None else witness
                entry["equal"] = torch.equal(outputs, witness[:limit])
                entry["error"] = shape.error(outputs)
                if num_rows <= 64:
                    moved = shape.rows_of(37, 37 + num_rows, chunk, tile)
                    entry["equal"] &= torch.equal(moved, witness[37 : 37 + num_rows])
                entry["seconds"] = shape.ours(num_rows, chunk, tile)
            except Exception as error:  # a candidate that cannot run is a result, too
                entry |= {"equal": False, "failed": f"{type(error).__name__}: {str(error)[:200]}"}
                print(f"{shape.n}x{shape.k} chunk {chunk} M={num_rows} {tile}: {entry['failed']}", flush=True)
                torch.cuda.synchronize()  # raises if the context is lost: later figures would be worthless
            entries.append(entry)
        found["rows"][str(num_rows)] = entries
    return found


def main() -> None:
    """Measure what is not yet in the results file, then print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("build/gpu_gemm"))
    parser.add_argument("--resume", type=Path, help="results of an earlier run")
    parser.add_argument(
        "--budget", type=float, default=450.0, help="seconds after which no new candidate starts"
    )
    arguments = parser.parse_args()
    deadline = time.perf_counter() + arguments.budget
    arguments.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"shapes": {}}
    earlier = arguments.resume or arguments.out / "gpu_gemm.json"
    if earlier.exists():
        results = json.loads(earlier.read_text())
    results |= {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    wanted = [shape for shape in CHUNKS if f"{shape[0]}x{shape[1]}" not in results["shapes"]]
    compile_all(wanted)
    for n, k in wanted:
        if time.perf_counter() > deadline:
            break
        shape = Shape(n, k)
        result: dict[str, Any] = {"cublas": {str(m): shape.cublas(m) for m in ROWS}, "chunks": {}}
        for chunk in CHUNKS[n, k]:
            result["chunks"][str(chunk)] = measure_chunk(shape, chunk, deadline)
        if any("cut_short" in found for found in result["chunks"].values()):
            print(f"{n}x{k}: cut short by the time limit, not kept")
            break
        results["shapes"][f"{n}x{k}"] = result
        (arguments.out / "gpu_gemm.json").write_text(json.dumps(results) + "\n")
        print(
            f"{n}x{k}: chunk {choose(result)['chunk']}, {time.perf_counter() - deadline:.0f} s to the limit",
            flush=True,
        )
        del shape
        torch.cuda.empty_cache()
    (arguments.out / "gpu_gemm.json").write_text(json.dumps(results) + "\n")
    (arguments.out / "gpu_gemm.md").write_text(report(results))
    print(report(results))


if __name__ == "__main__":
    main()
