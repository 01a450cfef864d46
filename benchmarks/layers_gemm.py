"""Section of ``gpu_layers.py``: wide tiles for many rows, against cuBLAS and the bits of the plain kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import torch
from layers_common import DEVICE, Report, timed

from deepinfer.kernels.gpu.gemm import Tile, Workspace, gemm
from deepinfer.kernels.gpu.gemm_wide import WideTile, gemm_wide

SHAPES = (
    (1280, 5120),
    (2304, 5120),
    (5120, 2304),
    (5120, 8192),
    (32768, 1280),
    (512, 5120),
    (129280, 5120),
)
ROWS = (512, 2048, 8192)
WITNESS = Tile(128, 128, 64, 4, 4)
MANY = (
    WideTile((128, 0), (128, 32), 64, 4, 8),
    WideTile((128, 32), (128, 0), 64, 4, 8, True),
    WideTile((128, 64), (128, 64), 64, 4, 8),
    WideTile((256, 0), (128, 32), 64, 4, 8),
    WideTile((128, 0), (128, 0), 64, 3, 4),
    WideTile((128, 0), (256, 0), 64, 4, 8),
)
FEW = (
    WideTile((64, 0), (64, 32), 128, 4, 4),
    WideTile((128, 0), (64, 16), 64, 6, 8),
    WideTile((128, 0), (128, 64), 64, 4, 8),
    WideTile((256, 0), (64, 32), 64, 4, 8),
    WideTile((64, 0), (128, 0), 128, 4, 4),
    WideTile((128, 0), (256, 0), 64, 4, 8),
)


def _launch(n: int, k: int, tile: Any, kind: str) -> None:
    x, w = torch.empty(512, k, dtype=torch.bfloat16), torch.empty(n, k, dtype=torch.bfloat16)
    out = torch.empty(512, n, dtype=getattr(torch, kind))
    if isinstance(tile, WideTile):
        gemm_wide(x, w, out, tile)
    else:
        gemm(x, w, out, k, tile, Workspace.on(torch.device("cpu"), 1 << 10, 1 << 10))


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles."""
    for kind in ("bfloat16", "float32"):
        for tile in {*MANY, *FEW, WITNESS}:
            yield _launch, (1280, 5120, tile, kind)


def run(report: Report) -> None:
    """All shapes."""
    workspace = Workspace.on(torch.device(DEVICE), 1 << 10)
    for n, k in SHAPES:
        torch.manual_seed(n)
        copies = 2 if n > 100_000 else max(2, (300 << 20) // (2 * n * k))
        weights = [torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(min(copies, 16))]
        x = torch.randn(max(ROWS), k, device=DEVICE, dtype=torch.bfloat16)
        for m in ROWS:
            rows, out = x[:m], torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
            repeats = max(2, min(40, int(4e-3 / (2 * m * n * k / 7e14 + 4e-6))))

            def cublas(
                rows: Any = rows, out: Any = out, weights: Any = weights, repeats: int = repeats
            ) -> float:
                return timed([lambda w=w: torch.mm(rows, w.t(), out=out) for w in weights], repeats) * 1e6

            base = report.attempt(f"gemm {n}x{k} M={m} cublas", cublas)
            checked = rows[: min(m, 2048)]
            exact = torch.empty(len(checked), n, device=DEVICE)
            gemm(checked, weights[0], exact, k, WITNESS, workspace)
            for tile in MANY if m > 512 else FEW:

                def candidate(
                    tile: WideTile = tile,
                    rows: Any = rows,
                    out: Any = out,
                    exact: Any = exact,
                    weights: Any = weights,
                    checked: Any = checked,
                    repeats: int = repeats,
                    base: Any = base,
                ) -> dict[str, Any]:
                    found = torch.full_like(exact, float("nan"))
                    gemm_wide(checked, weights[0], found, tile)
                    part = torch.full_like(exact[37:54], float("nan"))
                    gemm_wide(checked[37:54], weights[0], part, tile)
                    equal = torch.equal(found, exact) and torch.equal(part, exact[37:54])
                    seconds = timed([lambda w=w: gemm_wide(rows, w, out, tile) for w in weights], repeats)
                    return {"equal": equal, "us": seconds * 1e6, "ratio": round(base / seconds / 1e6, 3)}

                report.attempt(f"gemm {n}x{k} M={m} {astuple(tile)}", candidate)
            del exact
        del weights, x
        torch.cuda.empty_cache()


def summary(facts: dict[str, Any]) -> list[str]:
    """Best equal tile of every shape and row count."""
    lines = [
        "## bf16 GEMM, many rows",
        "",
        "| N x K | M | best equal tile | ratio to cuBLAS | unequal |",
        "|---" * 5 + "|",
    ]
    product, count = 1.0, 0
    for n, k in SHAPES:
        for m in ROWS:
            head = f"gemm {n}x{k} M={m} "
            found = {name[len(head) :]: f for name, f in facts.items() if name.startswith(head + "(")}
            equal = {name: f for name, f in found.items() if f["equal"]}
            if equal:
                name = max(equal, key=lambda name: float(equal[name]["ratio"]))
                lines.append(
                    f"| {n}x{k} | {m} | {name} | {equal[name]['ratio']} | {len(found) - len(equal)} |"
                )
                product, count = product * equal[name]["ratio"], count + 1
    return [*lines, "", f"geometric mean {product ** (1 / max(count, 1)):.3f} over {count}", ""]
