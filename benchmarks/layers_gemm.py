"""Section of ``gpu_layers.py``: the products of the static table against cuBLAS, and their bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from layers_common import DEVICE, Report, timed

from deepinfer.kernels.gpu.gemm import Tile, Workspace, gemm
from deepinfer.kernels.gpu.gemm_tiles import multiply, plan

SHAPES = (
    (1280, 5120),
    (2304, 5120),
    (5120, 2304),
    (5120, 8192),
    (32768, 1280),
    (512, 5120),
    (129280, 5120),
)
ROWS = (1, 8, 16, 64, 512, 2048, 8192)
FEW = (1, 8, 16, 64)
WITNESS = Tile(128, 128, 64, 4, 4)


def _launch(n: int, k: int, m: int) -> None:
    x, w = torch.empty(m, k, dtype=torch.bfloat16), torch.empty(n, k, dtype=torch.bfloat16)
    workspace = Workspace.on(torch.device("cpu"), 1 << 22, 1 << 14)
    for kind in (torch.bfloat16, torch.float32):
        multiply(x, w, torch.empty(m, n, dtype=kind), workspace)
    gemm(x, w, torch.empty(m, n), plan(n, k).chunk, WITNESS, workspace)


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles."""
    for n, k in SHAPES:
        for m in (16, 64, 512, 2048, 8192):
            yield _launch, (n, k, m)


def _measure(x: torch.Tensor, weights: list[torch.Tensor], workspace: Workspace) -> dict[str, Any]:
    (m, k), n = x.shape, len(weights[0])
    repeats = max(2, min(40, int(4e-3 / (max(2 * m * n * k / 7e14, 2 * n * k / 4e12) + 4e-6))))
    out = torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
    theirs = timed([lambda w=w: torch.mm(x, w.t(), out=out) for w in weights], repeats)
    ours = timed([lambda w=w: multiply(x, w, out, workspace) for w in weights], repeats)
    few = x[:2048]
    exact = gemm(
        few, weights[0], torch.empty(len(few), n, device=DEVICE), plan(n, k).chunk, WITNESS, workspace
    )
    found = multiply(few, weights[0], torch.full_like(exact, float("nan")), workspace)
    ratio = {
        "ratio": round(theirs / ours, 3),
        "us": round(ours * 1e6, 2),
        "cublas_us": round(theirs * 1e6, 2),
    }
    return ratio | {"equal": torch.equal(found, exact)}


def run(report: Report) -> None:
    """All shapes."""
    workspace = Workspace.on(torch.device(DEVICE), 1 << 22, 1 << 14)
    for n, k in SHAPES:
        torch.manual_seed(n)
        copies = 2 if n > 100_000 else min(40, max(2, (300 << 20) // (2 * n * k)))
        weights = [torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(copies)]
        x = torch.randn(max(ROWS), k, device=DEVICE, dtype=torch.bfloat16)
        for m in ROWS:
            report.attempt(f"gemm {n}x{k} M={m}", lambda m=m, x=x, w=weights: _measure(x[:m], w, workspace))
        del weights, x
        torch.cuda.empty_cache()


def summary(facts: dict[str, Any]) -> list[str]:
    """Ratios to cuBLAS, and both geometric means."""
    heads = " | ".join(f"M={m}" for m in ROWS)
    lines = ["## bf16 GEMM of the static table, cuBLAS = 1", "", f"| N x K | {heads} |", "|---" * 8 + "|"]
    means: dict[bool, list[float]] = {True: [], False: []}
    for n, k in SHAPES:
        cells = []
        for m in ROWS:
            fact = facts.get(f"gemm {n}x{k} M={m}")
            cells.append("-" if fact is None else f"{fact['ratio']}" + ("" if fact["equal"] else " UNEQUAL"))
            if fact is not None:
                means[m in FEW].append(math.log(fact["ratio"]))
        lines.append(f"| {n}x{k} | {' | '.join(cells)} |")
    few, many = (math.exp(sum(v) / max(len(v), 1)) for v in (means[True], means[False]))
    return [*lines, "", f"Geometric means: M of 1 to 64 {few:.3f}, M of 512 to 8192 {many:.3f}", ""]
