"""Rows of one expert times one of its matrices, whichever way its weights are held."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepinfer.kernels.cpu.code_tile import TAKES_CODES, make_code_tile, make_decode, panel_bytes
from deepinfer.kernels.cpu.compiled import inlined
from deepinfer.kernels.cpu.fma_tile import PANEL, ROW_PANELS, TILE_ROWS
from deepinfer.kernels.cpu.linear import copy_row, full_tile, panel_rows

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Place = tuple[int, int, int, int]
"""Address of the first panel, form of the weights, panels of an expert, K; see ``ExpertStack.place``."""
PLAIN, HALVES, CODES = 0, 1, 2
"""float32, bfloat16, codes as ``code_tile`` has them."""
FEW_ROWS = 6
"""Rows that codes are multiplied with; for more of them it pays to decode a panel once."""

if TAKES_CODES:
    _one, _two, _three = make_code_tile(1, ROW_PANELS), make_code_tile(2, 2), make_code_tile(3, 2)
    _six, _decode = make_code_tile(FEW_ROWS, 1), make_decode()

    @inlined
    def _code_rows(
        rows: np.int64,
        count: int,
        panels: int,
        b: np.int64,
        depth: int,
        panel: int,
        out: np.int64,
        stride: int,
    ) -> int:
        """``panel_rows`` of one to FEW_ROWS rows and codes; ``rows`` is the address of their addresses."""
        if count == 1 and panel + ROW_PANELS <= panels:
            _one(rows, b, depth, out, stride)
            return panel + ROW_PANELS
        if count <= 2 and panel + 2 <= panels:
            _two(rows, b, depth, out, stride)
            return panel + 2
        if count <= 3 and panel + 2 <= panels:
            _three(rows, b, depth, out, stride)
            return panel + 2
        _six(rows, b, depth, out, stride)
        return panel + 1

    @inlined
    def _decoded(b: np.int64, depth: int, plain: np.int64) -> None:
        _decode(b, depth, plain)

else:

    @inlined
    def _code_rows(
        rows: np.int64,
        count: int,
        panels: int,
        b: np.int64,
        depth: int,
        panel: int,
        out: np.int64,
        stride: int,
    ) -> int:
        return panels

    @inlined
    def _decoded(b: np.int64, depth: int, plain: np.int64) -> None:
        pass


@inlined
def products(
    rows: Int64,
    count: int,
    place: Place,
    e: int,
    out: Float32,
    group: Int64,
    tile: Float32,
    plain: Float32,
) -> None:
    """``out[i]`` = row i (its address in ``rows``) times every panel of expert ``e``, for ``count`` rows.

    ``out`` holds whole panels in its columns; one panel at a time passes over all rows, so that it stays in
    the first-level cache. A few rows alone pass over several panels at a time. ``group``, ``tile`` and
    ``plain`` are scratch; ``plain`` holds a panel as float32, if more than FEW_ROWS rows meet codes.
    """
    weights, form, num_panels, depth = place
    half, is_coded, is_few = form == HALVES, form == CODES, count <= FEW_ROWS
    size = panel_bytes(depth) if is_coded else depth * PANEL * (2 if half else 4)
    scratch, stride = np.int64(tile.ctypes.data), out.shape[1]
    p = 0
    while p < num_panels:
        b = np.int64(weights) + np.int64(e * num_panels + p) * np.int64(size)
        limit, following, i = num_panels, p + 1, 0
        if is_coded and not is_few:
            _decoded(b, depth, np.int64(plain.ctypes.data))
            b, limit = np.int64(plain.ctypes.data), p + 1
        while i + TILE_ROWS <= count:
            target = np.int64(out.ctypes.data) + np.int64(i * stride + p * PANEL) * 4
            full_tile(np.int64(rows.ctypes.data) + i * 8, b, half, depth, target, stride)
            limit = p + 1
            i += TILE_ROWS
        if i < count:
            for r in range(TILE_ROWS):
                group[r] = rows[min(i + r, count - 1)]
            if is_coded and is_few:
                table = np.int64(group.ctypes.data)
                following = _code_rows(table, count, num_panels, b, depth, p, scratch, tile.shape[1])
            else:
                following = panel_rows(group, count - i, limit, b, half, depth, p, scratch, tile.shape[1])
            for r in range(count - i):
                copy_row(tile[r], out[i + r, p * PANEL : following * PANEL], False)
        p = following
