"""Section of ``gpu_layers.py``: FP8 weights against the same weights in bfloat16, in bytes and in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import torch
from layers_common import DEVICE, Report, timed

from deepinfer.kernels.gpu.fp8_weights import SIDE, Fp8Weights, pack_fp8
from deepinfer.kernels.gpu.gemm import BY_SECOND, Tile, Workspace, gemm
from deepinfer.kernels.gpu.gemm_tiles import multiply, plan

SHAPES = ((1280, 5120), (2304, 5120), (5120, 2304), (5120, 8192), (32768, 1280), (512, 5120))
ROWS = (1, 8, 16, 64)
SOME = {
    16: (Tile(64, 16, 128, 6, 4), Tile(64, 16, 128, 8, 4), Tile(128, 16, 128, 6, 8)),
    64: (Tile(64, 64, 128, 4, 4), Tile(64, 64, 128, 6, 4), Tile(128, 64, 128, 4, 8)),
}


def _tiles(n: int, k: int, rows: int) -> list[Tile]:
    """Of a bucket of rows, the chunks as they are for bfloat16."""
    way = BY_SECOND if plan(n, k).chunk < k else 0
    return [Tile(*astuple(tile)[:5], way) for tile in SOME[16 if rows <= 16 else 64]]


def _weights(n: int, k: int, place: str) -> tuple[torch.Tensor, Fp8Weights]:
    """The same numbers in both formats; subnormal codes, both zeros, scales that differ by block."""
    codes = torch.randint(0, 256, (n, k), dtype=torch.uint8, device=place)
    codes[(codes & 127) == 127] = 0x80
    scales = torch.randint(114, 122, (-(-n // SIDE), k // SIDE), device=place).to(torch.uint8)
    wide = scales.repeat_interleave(SIDE, 0)[:n].repeat_interleave(SIDE, 1).to(torch.float32)
    dense = torch.ldexp(codes.view(torch.float8_e4m3fn).to(torch.float32), wide - 127)
    return dense.to(torch.bfloat16), pack_fp8(codes, scales)


def _launch(n: int, k: int, m: int, tile: Tile) -> None:
    workspace = Workspace.on(torch.device("cpu"), 1 << 22, 1 << 14)
    empty = torch.zeros(n, k // 4, dtype=torch.int32)
    weight = Fp8Weights(empty, torch.zeros(k // 128, n, dtype=torch.int32))
    x = torch.empty(m, k, dtype=torch.bfloat16)
    gemm(x, weight, torch.empty(m, n, dtype=torch.bfloat16), plan(n, k).chunk, tile, workspace)


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles beside the products of bfloat16."""
    for n, k in SHAPES:
        for m in (16, 64):
            for tile in _tiles(n, k, m):
                yield _launch, (n, k, m, tile)


def _measure(x: torch.Tensor, pairs: list[tuple[torch.Tensor, Fp8Weights]], tile: Tile) -> dict[str, Any]:
    (m, k), n = x.shape, len(pairs[0][0])
    workspace, chunk = Workspace.on(torch.device(DEVICE), 1 << 22, 1 << 14), plan(n, k).chunk
    outs = [torch.full((m, n), float("nan"), device=DEVICE, dtype=torch.bfloat16) for _ in range(2)]
    unequal = 0
    for dense, eight in pairs[:2]:
        multiply(x, dense, outs[0], workspace)
        gemm(x, eight, outs[1], chunk, tile, workspace)
        unequal += int((outs[0].view(torch.int16) != outs[1].view(torch.int16)).sum())
    repeats = max(4, min(40, int(4e-3 / (2 * n * k / 4e12 + 4e-6))))
    wide = timed([lambda w=w: multiply(x, w, outs[0], workspace) for w, _ in pairs], repeats)
    half = timed([lambda w=w: gemm(x, w, outs[1], chunk, tile, workspace) for _, w in pairs], repeats)
    figures = {
        "times_bf16": round(wide / half, 3),
        "us": round(half * 1e6, 2),
        "bf16_us": round(wide * 1e6, 2),
    }
    return figures | {"unequal": unequal}


def run(report: Report) -> None:
    """All shapes; operands rotate, so that no cache holds them."""
    for n, k in SHAPES:
        torch.manual_seed(n + k)
        pairs = [_weights(n, k, DEVICE) for _ in range(min(40, max(2, (150 << 20) // (n * k))))]
        x = torch.randn(max(ROWS), k, device=DEVICE, dtype=torch.bfloat16)
        for m in ROWS:
            for tile in _tiles(n, k, m):
                name = f"fp8 {n}x{k} M={m} {astuple(tile)}"
                report.attempt(name, lambda m=m, x=x, p=pairs, t=tile: _measure(x[:m], p, t))
        del pairs
        torch.cuda.empty_cache()
