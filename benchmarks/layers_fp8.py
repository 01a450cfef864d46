"""Section of ``gpu_layers.py``: FP8 weights against the same weights in bfloat16, in bytes and in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import torch
from layers_common import DEVICE, Report, timed

from deepinfer.kernels.gpu import hopper_fp8_ss
from deepinfer.kernels.gpu.fast_linear import rounded_rows
from deepinfer.kernels.gpu.fp8_weights import SIDE, Fp8Weights, pack_fp8, widen
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.gemm_tiles import multiply, multiply_groups, plan
from deepinfer.kernels.gpu.hopper_fp8 import Fp8Tile, products

SHAPES = (
    (1, 1280, 5120),
    (1, 2304, 5120),
    (1, 5120, 2304),
    (1, 5120, 8192),
    (1, 32768, 1280),
    (1, 512, 5120),
    (1, 129280, 5120),
    (1, 4608, 5120),
    (1, 4096, 1280),
    (8, 1024, 4096),
)
"""Groups, outputs and inputs: the seven widths of the table, then three more of released layers."""
ROWS = (1, 2, 8, 16, 17, 33, 64)
TIMED = (1, 8, 16, 32, 64)
MANY = (128, 512, 2048)
_FORMS = {
    8: ((4, 1, 4, 4), (4, 1, 4, 6), (4, 1, 2, 10), (8, 1, 4, 4), (8, 1, 2, 6), (4, 2, 2, 6), (8, 2, 2, 5)),
    16: ((4, 1, 4, 4), (4, 1, 4, 6), (4, 1, 2, 10), (8, 1, 4, 4), (8, 1, 2, 6), (4, 2, 2, 6), (8, 2, 2, 5)),
    32: ((4, 1, 4, 5), (8, 1, 4, 4), (8, 1, 2, 6), (4, 2, 2, 5), (8, 2, 2, 5)),
    64: ((4, 1, 2, 6), (4, 1, 4, 3), (8, 1, 2, 4), (8, 1, 4, 3), (4, 2, 2, 5), (8, 2, 2, 4)),
    128: ((8, 1, 2, 3), (4, 2, 2, 3), (8, 2, 2, 3)),
}
"""Rows of a tile -> warps, runs, quarters of a step, stages."""
_OTHERS = {
    16: (
        (16, 4, 6, 3, 4, 2, (64, 64)),
        (16, 2, 8, 6, 4, 3, (64, 64)),
        (32, 2, 8, 4, 4, 2, (64, 64)),
        (32, 2, 8, 6, 4, 3, (64, 64)),
        (32, 4, 4, 3, 8, 2, (64, 64)),
        (64, 2, 6, 4, 4, 2, (72, 80)),
        (64, 2, 6, 4, 8, 2, (64, 64)),
        (64, 2, 6, 4, 4, 3, (72, 80)),
        (64, 2, 4, 3, 4, 2, (64, 72)),
    ),
    32: (
        (32, 2, 6, 6, 4, 3, (64, 64)),
        (64, 2, 5, 4, 4, 3, (72, 80)),
        (64, 2, 4, 3, 4, 2, (64, 72)),
    ),
    64: (
        (32, 2, 6, 4, 4, 2, (64, 64)),
        (32, 2, 6, 4, 4, 3, (64, 64)),
        (64, 2, 5, 3, 4, 3, (72, 80)),
        (64, 2, 4, 3, 4, 2, (64, 72)),
        (128, 2, 4, 2, 8, 2, (64, 64)),
    ),
    128: ((64, 2, 3, 3, 4, 3, (80, 80)), (128, 2, 3, 2, 8, 2, (72, 64))),
}
"""Rows of a tile -> outputs, quarters, stages, steps ahead, warps and groups that decode, registers."""
COMPILED = ((1, 1280, 5120), (1, 512, 5120), (8, 1024, 4096))
"""Shapes whose programs are those of all shapes."""
AnyTile = Fp8Tile | hopper_fp8_ss.Fp8Tile
Weights = tuple[torch.Tensor, Fp8Weights, Fp8Weights]


def _tiles(n: int, k: int, num_rows: int) -> list[AnyTile]:
    """Of a bucket of rows; chunks have programs of their own where one group has several."""
    rows = min(most for most in _FORMS if most >= min(num_rows, max(_FORMS)))

    def registers(warps: int) -> int:
        return (104 if rows > 64 else 64) if warps == 4 else (112 if rows > 64 else 80)

    tiles: list[AnyTile] = [
        Fp8Tile(w, runs, rows, q, stages, registers(w), n == 512) for w, runs, q, stages in _FORMS[rows]
    ]
    tiles += [hopper_fp8_ss.Fp8Tile(t, rows, *rest, spread=n == 512) for t, *rest in _OTHERS[max(rows, 16)]]
    return [tile for tile in tiles if n % tile.outputs == 0 and k % (64 * tile.quarters) == 0]


def _multiply(
    x: Any, weights: Weights, out: Any, chunk: int, tile: AnyTile, room: Workspace, early: bool
) -> Any:
    if isinstance(tile, Fp8Tile):
        return products(x, weights[1], out, chunk, tile, room, early=early)
    return hopper_fp8_ss.products(x, weights[2], out, chunk, tile, room, early=early)


def _codes(groups: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes with subnormals and both zeros, and scales that differ by block."""
    codes = torch.randint(0, 256, (groups * n, k), dtype=torch.uint8, device=DEVICE)
    codes[(codes & 127) == 127] = 0x80
    scales = torch.randint(114, 122, (groups * n // SIDE, k // SIDE), device=DEVICE).to(torch.uint8)
    return codes, scales


def _plain(codes: torch.Tensor, scales: torch.Tensor, groups: int) -> Fp8Weights:
    inputs = codes.shape[1]
    cut = codes.view(groups, -1, inputs // 64, 16, 2, 2).permute(0, 2, 1, 3, 5, 4).contiguous()
    pattern = (scales.to(torch.int32) + 120) << 7
    return Fp8Weights(cut.view(groups, inputs // 64, -1, 64).view(torch.int32), pattern | pattern << 16)


def _weights(groups: int, n: int, k: int) -> Weights:
    """The same numbers in all formats."""
    codes, scales = _codes(groups, n, k)
    eight = pack_fp8(codes, scales, groups)
    dense = widen(eight, torch.empty(groups, n, k, dtype=torch.bfloat16, device=DEVICE))
    return dense, eight, _plain(codes, scales, groups)


def _widened(groups: int, n: int, k: int) -> dict[str, int]:
    """Values of a widened weight whose bytes are not those of torch."""
    codes, scales = _codes(groups, n, k)
    dense = widen(
        pack_fp8(codes, scales, groups), torch.empty(groups, n, k, dtype=torch.bfloat16, device=DEVICE)
    )
    powers = scales.to(torch.int32).repeat_interleave(SIDE, 0).repeat_interleave(SIDE, 1) - 127
    wanted = torch.ldexp(codes.view(torch.float8_e4m3fn).float(), powers).to(torch.bfloat16)
    return {"unequal": int((dense.view(torch.int16).flatten() != wanted.view(torch.int16).flatten()).sum())}


def _wide(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, workspace: Workspace) -> torch.Tensor:
    """As the layers call it: one group, groups in one launch, or a launch each."""
    if len(w) == 1:
        return multiply(x, w[0], out, workspace)
    found = multiply_groups(x, w, out, workspace)
    if found is None:
        n, k = w.shape[1:]
        for i in range(len(w)):
            multiply(x[:, k * i : k * (i + 1)], w[i], out[:, n * i : n * (i + 1)], workspace)
    return out


def _launch(groups: int, n: int, k: int, m: int, tile: AnyTile) -> None:
    workspace = Workspace.on(torch.device("cpu"), 1 << 22, 1 << 14)
    factors = torch.zeros(groups * n // 32, k // 32, dtype=torch.int32)
    words = torch.zeros(groups, k // 64, n // 8, 32, 4, dtype=torch.int32)
    plain = torch.zeros(groups, k // 64, n, 16, dtype=torch.int32)
    weights = words.to(torch.bfloat16), Fp8Weights(words, factors), Fp8Weights(plain, factors)
    x, out = torch.empty(m, groups * k, dtype=torch.bfloat16), torch.empty(m, groups * n)
    for early in (False, True):
        _multiply(x, weights, out, plan(n, k).chunk, tile, workspace, early)


def _launch_rounding(k: int) -> None:
    rounded_rows(torch.empty(2, k))


def _launch_wide(groups: int, n: int, k: int, m: int, kind: torch.dtype) -> None:
    workspace = Workspace.on(torch.device("cpu"), 1 << 22, 1 << 14)
    w = torch.empty(groups, n, k, dtype=torch.bfloat16)
    _wide(torch.empty(m, groups * k, dtype=kind), w, torch.empty(m, groups * n), workspace)


def jobs() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Everything this section compiles; first what most of it needs."""
    for _, _, k in SHAPES:
        yield _launch_rounding, (k,)
    for m in (8, 16, 32, 64, *MANY):
        for groups, n, k in SHAPES:
            for kind in (torch.bfloat16, torch.float32)[: 1 if m in MANY else 2]:
                yield _launch_wide, (groups, n, k, m, kind)
        for groups, n, k in COMPILED:
            for tile in _tiles(n, k, m):
                yield _launch, (groups, n, k, m, tile)


def _bits(x: torch.Tensor, weights: Weights, tile: AnyTile, rows: int) -> dict[str, int]:
    """Values whose bytes differ: from bfloat16, begun early, from the same rows among others."""
    n, k, places = weights[0].shape[1], weights[0].shape[2], len(weights[0]) * weights[0].shape[1]
    workspace, chunk = Workspace.on(torch.device(DEVICE), 1 << 22, 1 << 14), plan(n, k).chunk

    def nothing() -> torch.Tensor:
        return torch.full((rows, places), float("nan"), device=DEVICE)

    def differ(a: torch.Tensor, b: torch.Tensor) -> int:
        return int((a.view(torch.int32) != b.view(torch.int32)).sum())

    own = _multiply(x[:rows], weights, nothing(), chunk, tile, workspace, False)
    early, full = nothing(), x[:rows].float()
    early = _multiply(rounded_rows(full), weights, early, chunk, tile, workspace, True)
    moved = _multiply(x[rows - 1 : 2 * rows - 1], weights, nothing(), chunk, tile, workspace, False)
    return {
        "unequal": differ(own, _wide(x[:rows], weights[0], nothing(), workspace)),
        "early": differ(own, early),
        "company": differ(own[rows - 1], moved[0]),
    }


def _times(x: torch.Tensor, pairs: list[Weights], tiles: list[AnyTile]) -> dict[str, Any]:
    """Microseconds of cuBLAS, of bfloat16 and of every tile."""
    (groups, n, k), m = pairs[0][0].shape, len(x)
    workspace, chunk = Workspace.on(torch.device(DEVICE), 1 << 22, 1 << 14), plan(n, k).chunk
    out, room = torch.empty(m, groups * n, device=DEVICE), torch.empty_like(pairs[0][0])
    repeats = max(4, min(40, int(3e-3 / (groups * n * k / 4e12 + 4e-6))))
    full = x.float()

    def every(call: Any) -> float:
        return timed([lambda p=pair: call(p) for pair in pairs], repeats)

    def rounding(given: torch.Tensor) -> torch.Tensor:
        return given.to(torch.bfloat16)

    found: dict[str, float] = {}
    if groups == 1:
        half = out.to(torch.bfloat16)
        found["cublas"] = every(lambda p: torch.mm(x, p[0][0].t(), out=half))
    found["bf16"] = every(lambda p: _wide(x, p[0], out, workspace))
    if m <= 64:
        found["bf16 of float32"] = every(lambda p: _wide(full, p[0], out, workspace))
        found["bf16, rounding"] = every(lambda p: _wide(rounding(full), p[0], out, workspace))
    else:
        found["widen"] = every(lambda p: widen(p[1], room))
        found["widen, bf16"] = every(lambda p: _wide(x, widen(p[1], room), out, workspace))
    own: dict[AnyTile, float] = {}
    for tile in tiles:
        try:
            own[tile] = every(lambda p, t=tile: _multiply(x, p, out, chunk, t, workspace, False))
        except Exception as error:  # a tile that does not fit is a result, too
            print(f"{n}x{k} {tile}: {str(error)[:200]}", flush=True)
    if m <= 64:
        found["bf16, own rounding"] = every(lambda p: _wide(rounded_rows(full), p[0], out, workspace))
        for kind in (Fp8Tile, hopper_fp8_ss.Fp8Tile):
            best = min((tile for tile in own if isinstance(tile, kind)), key=lambda tile: own[tile])
            for early in (False, True):
                found[f"best {kind.__module__[-3:]}, early {early}"] = every(
                    lambda p, e=early, t=best: _multiply(rounded_rows(full), p, out, chunk, t, workspace, e)
                )
    found |= {str(astuple(tile)[:-1]): seconds for tile, seconds in own.items()}
    return {name: round(seconds * 1e6, 2) for name, seconds in found.items()}


def run(report: Report) -> None:
    """Bits of all shapes, then times; operands rotate, so that no cache holds them."""
    for groups, n, k in SHAPES:
        torch.manual_seed(n + k)
        report.attempt(f"fp8 widened {groups}x{n}x{k}", lambda g=groups, n=n, k=k: _widened(g, n, k))
        weights = _weights(groups, n, k)
        x = torch.randn(256, groups * k, device=DEVICE, dtype=torch.bfloat16)
        for m in (*ROWS, 128):
            for tile in _tiles(n, k, m):
                name = f"fp8 bits {groups}x{n}x{k} M={m} {astuple(tile)[:-1]}"
                report.attempt(name, lambda m=m, x=x, w=weights, t=tile: _bits(x, w, t, m))
    for groups, n, k in SHAPES:
        copies = min(40, max(2, (150 << 20) // (groups * n * k)))
        pairs = [_weights(groups, n, k) for _ in range(copies)]
        x = torch.randn(max(MANY), groups * k, device=DEVICE, dtype=torch.bfloat16)
        for m in (*TIMED, *MANY):
            tiles, name = _tiles(n, k, m), f"fp8 us {groups}x{n}x{k} M={m}"
            report.attempt(name, lambda p=pairs, g=x[:m], t=tiles: _times(g, p, t))
        del pairs
