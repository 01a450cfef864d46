"""Linear layers: ``out[t, n] = sum over k of x[t, k] * w[n, k]``, one fma chain over ascending k per output.

Legend: T rows, K inputs, N outputs, G groups. Weights are repacked once into panels ``[ceil(N / PANEL), K,
    PANEL]``,
so that the tile reads them in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import to_bf16
from deepinfer.kernels.cpu.fma_tile import FEW_TILES, PANEL, ROW_PANELS, TILE_ROWS, VECTOR, make_tile
from deepinfer.kernels.cpu.workers import Workers

ROW_BLOCK = 16 * TILE_ROWS
"""Rows that stay in the second-level cache while all panels pass over them; no effect on bits."""

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Panels = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
Place = tuple[int, bool, int, int, int]
"""See ``PackedLinear.place``."""
_full_tile = make_tile(TILE_ROWS)
_one_row = make_tile(1, num_panels=ROW_PANELS)
_two_rows, _three_rows, _four_rows, _five_rows = (
    make_tile(rows, num_panels=panels) for rows, panels in FEW_TILES
)
_full_half = make_tile(TILE_ROWS, half=True)
_one_half = make_tile(1, num_panels=ROW_PANELS, half=True)
_two_halves, _three_halves, _four_halves, _five_halves = (
    make_tile(rows, num_panels=panels, half=True) for rows, panels in FEW_TILES
)
_TWO, _THREE, _FOUR, _FIVE = (panels for _, panels in FEW_TILES)


@dataclass(frozen=True)
class PackedLinear:
    """A weight in panel order.

    Attributes:
        panels: [G, ceil(N / PANEL), K, PANEL]; columns past N are zero. G is 1 for a plain linear.
            float32, or bfloat16 as uint16 where that is exact, as ``halved`` orders it: products wait for
            weights to arrive.
        num_outputs: N of one group.
    """

    panels: Panels
    num_outputs: int

    @property
    def num_inputs(self) -> int:
        """K of one group."""
        return int(self.panels.shape[2])

    @cached_property
    def place(self) -> Place:
        """What kernels are told: address, whether bfloat16, G, panels of a group, K."""
        groups, panels, depth, _ = self.panels.shape
        return self.panels.ctypes.data, self.panels.dtype == np.uint16, groups, panels, depth


def panels_of(groups: Float32) -> Float32:
    """Panels float32 [G, ceil(N / PANEL), K, PANEL] of weights [G, N, K]."""
    num_groups, num_outputs, num_inputs = groups.shape
    num_panels = -(-num_outputs // PANEL)
    padded = np.zeros((num_groups, num_panels * PANEL, num_inputs), np.float32)
    padded[:, :num_outputs] = groups
    return np.ascontiguousarray(
        padded.reshape(num_groups, num_panels, PANEL, num_inputs).transpose(0, 1, 3, 2)
    )


def is_half(values: Float32) -> bool:
    """Whether bfloat16 holds every value exactly: formats of at most eight significant bits do."""
    return not (values.view(np.uint32) & np.uint32(0xFFFF)).any()


def halved(panels: Float32) -> npt.NDArray[np.uint16]:
    """The upper halves of panels [..., PANEL] that are ``is_half``.

    Column ``VECTOR + i`` follows column i, so that one load brings two vectors, and an operation widens each.
    """
    upper = (panels.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    pairs = upper.reshape(*upper.shape[:-1], 2, VECTOR).swapaxes(-1, -2)
    return np.ascontiguousarray(pairs).reshape(upper.shape)


def widened(halves: npt.NDArray[np.generic]) -> Float32:
    """The panels that were ``halved``."""
    upper = halves.reshape(*halves.shape[:-1], VECTOR, 2).swapaxes(-1, -2)
    return (np.ascontiguousarray(upper).reshape(halves.shape).astype(np.uint32) << np.uint32(16)).view(
        np.float32
    )


def pack_linear(weight: torch.Tensor) -> PackedLinear:
    """Repack ``weight`` float32 [N, K], or [G, N, K] for a grouped linear."""
    groups = weight.detach().to(torch.float32).numpy()
    groups = groups if groups.ndim == 3 else groups[None]
    panels = panels_of(groups)
    return PackedLinear(halved(panels) if is_half(panels) else panels, groups.shape[1])


@inlined
def copy_row(source: Float32, target: Float32, bf16: bool) -> None:
    """Copy as many values as ``target`` holds, rounded to bf16 if asked."""
    if bf16:
        for n in range(target.shape[0]):
            target[n] = to_bf16(source[n])
    else:
        for n in range(target.shape[0]):
            target[n] = source[n]


@inlined
def full_tile(table: np.int64, b: np.int64, half: bool, depth: int, out: np.int64, stride: int) -> None:
    """``TILE_ROWS`` rows, their addresses at ``table``, times the panel at ``b``."""
    if half:
        _full_half(table, b, PANEL, depth, out, stride)
    else:
        _full_tile(table, b, PANEL, depth, out, stride)


@inlined
def panel_rows(
    rows: Int64,
    count: int,
    panels: int,
    b: np.int64,
    half: bool,
    depth: int,
    panel: int,
    out: np.int64,
    stride: int,
) -> int:
    """One to ``TILE_ROWS`` rows times the panels from ``panel`` on; returns the panel after the last one.

    Args:
        rows: addresses of the rows; must hold ``TILE_ROWS`` of them, those past ``count`` repeat any row.
        count: rows wanted; further rows of ``out`` may be overwritten.
        panels: number of panels.
        b: address of the panel ``panel``.
        half: whether the panels are bfloat16.
        depth: K.
        panel: see above.
        out: address of the first result.
        stride: distance of the rows of ``out`` in elements.
    """
    table = np.int64(rows.ctypes.data)
    if count == 1 and panel + ROW_PANELS <= panels:
        if half:
            _one_half(table, b, PANEL, depth, out, stride)
        else:
            _one_row(table, b, PANEL, depth, out, stride)
        return panel + ROW_PANELS
    if count == 2 and panel + _TWO <= panels:
        if half:
            _two_halves(table, b, PANEL, depth, out, stride)
        else:
            _two_rows(table, b, PANEL, depth, out, stride)
        return panel + _TWO
    if count <= 3 and panel + _THREE <= panels:
        if half:
            _three_halves(table, b, PANEL, depth, out, stride)
        else:
            _three_rows(table, b, PANEL, depth, out, stride)
        return panel + _THREE
    if count <= 4 and panel + _FOUR <= panels:
        if half:
            _four_halves(table, b, PANEL, depth, out, stride)
        else:
            _four_rows(table, b, PANEL, depth, out, stride)
        return panel + _FOUR
    if count <= 5 and panel + _FIVE <= panels:
        if half:
            _five_halves(table, b, PANEL, depth, out, stride)
        else:
            _five_rows(table, b, PANEL, depth, out, stride)
        return panel + _FIVE
    full_tile(table, b, half, depth, out, stride)
    return panel + 1


@kernel
def linear_kernel(
    x: Float32,
    place: Place,
    out: Float32,
    num_outputs: int,
    bf16: bool,
    low: int,
    high: int,
) -> None:
    """Rows ``low .. high`` of ``out [T, G * N]``; ``x`` is [T, G * K], ``place`` a ``PackedLinear.place``."""
    weights, half, num_groups, num_panels, depth = place
    panel_bytes = np.int64(depth * PANEL * (2 if half else 4))
    rows = np.empty(TILE_ROWS, np.int64)
    tile = np.empty((TILE_ROWS, ROW_PANELS * PANEL), np.float32)
    table, scratch = np.int64(rows.ctypes.data), np.int64(tile.ctypes.data)
    stride = np.int64(x.shape[1]) * 4
    for block in range(low, high, ROW_BLOCK):
        block_end = min(block + ROW_BLOCK, high)
        for g in range(num_groups):
            x_base = np.int64(x.ctypes.data) + np.int64(g * depth * 4)
            p = 0
            while p < num_panels:
                b = np.int64(weights) + np.int64(g * num_panels + p) * panel_bytes
                first = g * num_outputs + p * PANEL
                following = p + 1
                row = block
                while row < block_end:
                    count = min(TILE_ROWS, block_end - row)
                    for r in range(TILE_ROWS):
                        rows[r] = x_base + min(row + r, block_end - 1) * stride
                    if count == TILE_ROWS and (p + 1) * PANEL <= num_outputs:
                        target = np.int64(out.ctypes.data) + np.int64(row * out.shape[1] + first) * 4
                        full_tile(table, b, half, depth, target, out.shape[1])
                    else:
                        # several panels at a time only if no full tile walks along
                        limit = num_panels if block_end - block < TILE_ROWS else p + 1
                        following = panel_rows(
                            rows, count, limit, b, half, depth, p, scratch, ROW_PANELS * PANEL
                        )
                        width = min(following * PANEL, num_outputs) - p * PANEL
                        for r in range(count):
                            copy_row(tile[r], out[row + r, first : first + width], False)
                    row += count
                p = following
        if bf16:
            for row in range(block, block_end):
                copy_row(out[row], out[row], True)


def linear(x: torch.Tensor, weight: PackedLinear, bf16: bool, workers: Workers) -> torch.Tensor:
    """``x`` float32 [T, G * K] -> float32 [T, G * N], rounded to bf16 at the end if ``bf16``.

    Raises:
        ValueError: ``x`` has another width than the weight.
    """
    num_groups = weight.panels.shape[0]
    if x.ndim != 2 or x.shape[1] != num_groups * weight.num_inputs:
        raise ValueError(
            f"linear: x is {list(x.shape)}, the weight takes [T, {num_groups * weight.num_inputs}]"
        )
    rows = x.contiguous().numpy()
    out = np.empty((rows.shape[0], num_groups * weight.num_outputs), np.float32)
    workers.run(
        rows.shape[0],
        TILE_ROWS,
        lambda low, high: linear_kernel(rows, weight.place, out, weight.num_outputs, bf16, low, high),
        item_cost=weight.panels.size,
    )
    return torch.from_numpy(out)
