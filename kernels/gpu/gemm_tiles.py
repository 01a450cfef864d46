"""Which tile a bf16 GEMM gets: a table by outputs, inputs and bucket of rows, made from committed
measurements.

``benchmarks/results/`` holds what it was made from. The chunk of K, and with it the order of every sum,
follows from (N, K) alone; a bucket of rows only chooses a launch shape, which the device script found to
move no bit.

Legend: M rows, N outputs, K inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from deepinfer.kernels.gpu.capability import capability_at
from deepinfer.kernels.gpu.gemm import BY_LAST, BY_SECOND, IN_LOOP, Tile, Workspace, gemm
from deepinfer.kernels.gpu.gemm_few import FewTile, gemm_few
from deepinfer.kernels.gpu.gemm_wide import WideTile, gemm_wide
from deepinfer.kernels.gpu.launching import ceil_div

_BUCKETS = (16, 64, 128, 256, 512, 2048)
"""Largest row counts of the buckets; a seventh holds the rest."""
_GROUPED = 256
"""Largest row count for which groups of a product are one launch."""
_FEW = Tile(64, 16, 128, 6, 4)
_SOME = Tile(64, 64, 128, 4, 4)
_SQUARE = Tile(128, 128, 64, 4, 4)


AnyTile = Tile | WideTile | FewTile


@dataclass(frozen=True)
class Plan:
    """The chunk of K for one weight shape, and a tile for every bucket of rows."""

    chunk: int
    tiles: tuple[AnyTile, ...]


_MEASURED = {
    (1280, 5120): Plan(
        5120,
        (
            _FEW,
            _SOME,
            _SOME,
            _SOME,
            WideTile((64, 0), (128, 0), 128, 4, 4),
            WideTile((128, 0), (128, 32), 64, 4, 8),
            Tile(128, 128, 64, 4, 4),
        ),
    ),
    (2304, 5120): Plan(
        5120,
        (
            _FEW,
            _SOME,
            Tile(64, 128, 64, 5, 4),
            Tile(64, 128, 64, 5, 4),
            Tile(64, 256, 64, 4, 4),
            WideTile((128, 64), (128, 64), 64, 4, 8),
            WideTile((128, 0), (128, 0), 64, 3, 4),
        ),
    ),
    (5120, 2304): Plan(
        2304,
        (
            _FEW,
            _SOME,
            _SQUARE,
            _SQUARE,
            WideTile((128, 0), (128, 64), 64, 4, 8),
            Tile(128, 128, 64, 4, 4),
            WideTile((128, 0), (128, 0), 64, 3, 4),
        ),
    ),
    (5120, 8192): Plan(
        8192,
        (
            _FEW,
            _SOME,
            _SQUARE,
            _SQUARE,
            WideTile((128, 0), (128, 64), 64, 4, 8),
            Tile(64, 256, 64, 4, 4),
            WideTile((128, 0), (256, 0), 64, 4, 8),
        ),
    ),
    (32768, 1280): Plan(
        1280,
        (
            Tile(64, 16, 128, 4, 4),
            Tile(128, 64, 128, 3, 8),
            _SQUARE,
            WideTile((128, 0), (256, 0), 64, 4, 8),
            WideTile((128, 0), (256, 0), 64, 4, 8),
            WideTile((128, 0), (128, 0), 64, 3, 4),
            Tile(128, 256, 64, 3, 8),
        ),
    ),
    (512, 5120): Plan(
        1280,
        (
            Tile(64, 16, 128, 6, 4, BY_SECOND),
            Tile(64, 64, 128, 4, 4, BY_SECOND),
            Tile(64, 64, 128, 4, 4, BY_SECOND),
            Tile(64, 64, 128, 4, 4, BY_SECOND),
            Tile(64, 128, 64, 5, 4, BY_SECOND),
            Tile(64, 128, 64, 5, 4),
            Tile(128, 256, 64, 4, 8),
        ),
    ),
    (129280, 5120): Plan(
        5120,
        (
            Tile(64, 16, 128, 4, 4),
            Tile(128, 64, 64, 5, 4),
            _SQUARE,
            WideTile((128, 0), (256, 0), 64, 4, 8),
            WideTile((128, 0), (256, 0), 64, 4, 8),
            Tile(128, 256, 64, 4, 8),
            WideTile((128, 0), (256, 0), 64, 4, 8),
        ),
    ),
}


def split(outputs: int, inputs: int) -> int:
    """Length of a chunk for a shape without a measurement: a multiple of 128, at least 1,024.

    A hundred or so programs keep the memory busy when rows are few.
    """
    chunks = max(1, min(inputs // 1024, 96 // max(ceil_div(outputs, 64), 1)))
    return ceil_div(ceil_div(inputs, chunks), 128) * 128


def _short(outputs: int, inputs: int) -> tuple[FewTile, FewTile] | None:
    """For up to 16 and up to 64 rows where a sum is so short that a launch is mostly waiting; else None."""
    if inputs <= 128:
        return (FewTile(32, 128, 4),) * 2
    if inputs <= 256:
        return FewTile(32 if outputs > 2048 else 64, 256, 4), FewTile(64, 256, 4)
    if inputs <= 1024 and outputs <= 256:
        return (FewTile(16, 1024, 4),) * 2
    return None


def plan(outputs: int, inputs: int, buckets: bool = True) -> Plan:
    """The plan of a weight shape; without ``buckets`` one small tile for any number of rows."""
    if not buckets:
        return Plan(split(outputs, inputs), (Tile(64, 64, 64, 3, 4),) * (len(_BUCKETS) + 1))
    known = _MEASURED.get((outputs, inputs))
    if known is not None:
        return known
    chunk = split(outputs, inputs)
    few, some = _short(outputs, inputs) or (
        Tile(64, 16, 128, 4, 4, BY_LAST),
        Tile(64, 64, 128, 4, 4, BY_SECOND),
    )
    more = Tile(64, 128, 64, 5, 4, BY_SECOND)
    many = more, more, Tile(64, 128, 64, 5, 4), Tile(128, 128, 64, 4, 8), Tile(128, 128, 64, 4, 8)
    return Plan(chunk, (few, some, *many))


def rounds_rows(num_rows: int, outputs: int, inputs: int, place: torch.device) -> bool:
    """Whether ``multiply`` takes so many rows in float32 and rounds them on their way, in every tile again.

    That spares a launch, which costs as much as a small product; where a tile has many steps it costs more.
    """
    if not capability_at(place).buckets:
        return False
    if inputs < 1024 or outputs < 512:
        return num_rows <= _BUCKETS[1]
    return num_rows <= _BUCKETS[0] and inputs < 2048


def multiply(
    x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, workspace: Workspace, bf16: bool = False
) -> torch.Tensor:
    """``x`` [M, K] times ``w`` bfloat16 [N, K] into ``out`` [M, N]; see ``gemm.gemm``.

    ``x`` is bfloat16, or float32 where ``rounds_rows``.
    """
    (num_rows, inputs), outputs = x.shape, w.shape[0]
    chosen = plan(outputs, inputs, capability_at(x.device).buckets)
    bucket = sum(num_rows > bound for bound in _BUCKETS)
    tile = chosen.tiles[bucket]
    if isinstance(tile, FewTile):
        return gemm_few(x, w, out, tile, bf16)
    if isinstance(tile, WideTile):
        return gemm_wide(x, w, out, tile, bf16)
    chunks = ceil_div(inputs, chosen.chunk)
    if tile.way != IN_LOOP and chunks * out.numel() > workspace.partials.numel():
        tile = Tile(tile.outputs, tile.rows, tile.depth, tile.stages, tile.warps, IN_LOOP)
    return gemm(x, w, out, chosen.chunk, tile, workspace, bf16)


def multiply_groups(
    x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, workspace: Workspace, bf16: bool = False
) -> torch.Tensor | None:
    """``multiply`` of G groups in one launch: ``x`` [M, G * K], ``w`` bfloat16 [G, N, K], ``out`` [M, G * N].

    None, and nothing done, if the rows are many, where a launch a group costs nothing, or the shape does not
    fit: multiply group by group then.
    """
    outputs, inputs = w.shape[1:]
    chosen = plan(outputs, inputs, capability_at(x.device).buckets)
    tile, chunks = chosen.tiles[sum(len(x) > bound for bound in _BUCKETS)], ceil_div(inputs, chosen.chunk)
    if isinstance(tile, FewTile):
        return gemm_few(x, w, out, tile, bf16)
    if len(x) > _GROUPED or isinstance(tile, WideTile) or inputs % chosen.chunk:
        return None
    if chunks > 1 and chunks * out.numel() > workspace.partials.numel():
        return None
    if tile.way == BY_SECOND:  # there is no second launch for groups
        tile = replace(tile, way=BY_LAST)
    return gemm(x, w, out, chosen.chunk, tile, workspace, bf16)
