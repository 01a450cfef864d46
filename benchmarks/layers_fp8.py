"""Section of ``gpu_layers.py``: FP8 weights against the same weights in bfloat16, in bytes and in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from layers_common import DEVICE, Report, timed

from deepinfer.kernels.gpu.fast_linear import FastLinear, linear
from deepinfer.kernels.gpu.fp8_linear import MOST, multiply_fp8, tile_of
from deepinfer.kernels.gpu.fp8_weights import SIDE, Fp8Weights, pack_fp8, widen
from deepinfer.kernels.gpu.gemm import Workspace

SHAPES = (
    (1, 1280, 5120),
    (1, 2304, 5120),
    (1, 5120, 2304),
    (1, 5120, 8192),
    (1, 32768, 1280),
    (1, 512, 5120),
    (1, 4608, 5120),
    (1, 4096, 1280),
    (8, 1024, 4096),
)
"""Groups, outputs and inputs of released layers."""
ROWS = (1, 2, 8, 16, 17, 33, 64, 65, 300)
TIMED = (1, 8, 16, 64, 128, 512, 2048)
COMPILED = ((1, 1280, 5120), (1, 5120, 8192), (1, 32768, 1280), (1, 512, 5120), (8, 1024, 4096))
"""Shapes whose FP8 programs are those of all shapes."""
Pair = tuple[FastLinear, Fp8Weights]


def _codes(groups: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes with subnormals and both zeros, and scales that differ by block."""
    codes = torch.randint(0, 256, (groups * n, k), dtype=torch.uint8, device=DEVICE)
    codes[(codes & 127) == 127] = 0x80
    scales = torch.randint(114, 122, (groups * n // SIDE, k // SIDE), device=DEVICE).to(torch.uint8)
    return codes, scales


def _pair(groups: int, n: int, k: int) -> Pair:
    """The same numbers in both formats."""
    eight = pack_fp8(*_codes(groups, n, k), groups)
    dense = widen(eight, torch.empty(groups, n, k, dtype=torch.bfloat16, device=DEVICE))
    return FastLinear(dense, 1, k), eight


def _launch(groups: int, n: int, k: int, m: int) -> None:
    workspace = Workspace.on(torch.device("cpu"), 1 << 22, 1 << 14)
    words = torch.zeros(groups, k // 64, n // 8, 32, 4, dtype=torch.int32)
    weight = Fp8Weights(words, torch.zeros(groups * n // 32, k // 32, dtype=torch.int32))
    x, out = torch.empty(m, groups * k, dtype=torch.bfloat16), torch.empty(m, groups * n)
    multiply_fp8(x, weight, out, workspace, True)


def _launch_wide(groups: int, n: int, k: int, m: int) -> None:
    workspace = Workspace.on(torch.device("cpu"), 1 << 22, 1 << 14)
    weight = FastLinear(torch.empty(groups, n, k, dtype=torch.bfloat16), 1, k)
    linear(torch.empty(m, groups * k), weight, workspace, True)


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles."""
    for m in (8, 16, 64, 128, 512, 2048):
        for groups, n, k in SHAPES:
            yield _launch_wide, (groups, n, k, m)
        for groups, n, k in COMPILED:
            if m <= MOST:
                yield _launch, (groups, n, k, m)


def _widened(groups: int, n: int, k: int) -> dict[str, int]:
    """Values of a widened weight whose bytes are not those of torch."""
    codes, scales = _codes(groups, n, k)
    room = torch.empty(groups, n, k, dtype=torch.bfloat16, device=DEVICE)
    dense = widen(pack_fp8(codes, scales, groups), room)
    powers = scales.to(torch.int32).repeat_interleave(SIDE, 0).repeat_interleave(SIDE, 1) - 127
    wanted = torch.ldexp(codes.view(torch.float8_e4m3fn).float(), powers).to(torch.bfloat16)
    return {"unequal": int((dense.view(torch.int16).flatten() != wanted.view(torch.int16).flatten()).sum())}


def _bits(x: torch.Tensor, pair: Pair, rows: int) -> dict[str, Any]:
    """Values of a layer whose bytes differ: from bfloat16, rounded or not, and from its rows among others."""
    workspace = Workspace.on(torch.device(DEVICE), 1 << 22, 1 << 14)

    def differ(a: torch.Tensor, b: torch.Tensor) -> int:
        return int((a.view(torch.int32) != b.view(torch.int32)).sum())

    dense, eight = pair
    own = linear(x[:rows], eight, workspace, False)
    moved = linear(x[rows - 1 : 2 * rows - 1], eight, workspace, False)
    rounded = linear(x[:rows], eight, workspace, True)
    return {
        "unequal": differ(own, linear(x[:rows], dense, workspace, False)),
        "rounded": differ(rounded, linear(x[:rows], dense, workspace, True)),
        "company": differ(own[rows - 1], moved[0]),
    }


def _times(x: torch.Tensor, pairs: list[Pair]) -> dict[str, Any]:
    """Microseconds of cuBLAS and of layers; rows of layers are float32 and rounded to bfloat16 within."""
    (groups, n, k), m = pairs[0][0].parts.shape, len(x)
    workspace, half = Workspace.on(torch.device(DEVICE), 1 << 22, 1 << 14), x.to(torch.bfloat16)
    out = torch.empty(m, groups * n, device=DEVICE)
    repeats = max(4, min(40, int(3e-3 / (groups * n * k / 4e12 + 4e-6))))

    def every(call: Callable[[Pair], Any]) -> float:
        return round(timed([lambda p=pair: call(p) for pair in pairs], repeats) * 1e6, 2)

    found = {
        "bf16": every(lambda p: linear(x, p[0], workspace, True)),
        "fp8": every(lambda p: linear(x, p[1], workspace, True)),
    }
    if groups == 1:
        found["cublas"] = every(lambda p: torch.mm(half, p[0].parts[0].t()))
    if m <= MOST:
        found["fp8, no rounding"] = every(lambda p: multiply_fp8(half, p[1], out, workspace))
    return found


def run(report: Report) -> None:
    """Bits of all shapes, then times; operands rotate, so that no cache holds them."""
    for groups, n, k in SHAPES:
        torch.manual_seed(n + k)
        name = f"{groups}x{n}x{k}"
        report.attempt(f"fp8 widened {name}", lambda g=groups, n=n, k=k: _widened(g, n, k))
        pair, x = _pair(groups, n, k), torch.randn(2 * max(ROWS), groups * k, device=DEVICE)
        x = x.to(torch.bfloat16).float()
        for m in ROWS:
            tile = tile_of(groups, n, k, m)
            report.attempt(f"fp8 bits {name} M={m} {tile}", lambda m=m, x=x, p=pair: _bits(x, p, m))
    for groups, n, k in SHAPES:
        pairs = [_pair(groups, n, k) for _ in range(min(40, max(2, (150 << 20) // (groups * n * k))))]
        x = torch.randn(max(TIMED), groups * k, device=DEVICE)
        for m in TIMED:
            report.attempt(f"fp8 us {groups}x{n}x{k} M={m}", lambda p=pairs, g=x[:m]: _times(g, p))
        del pairs
