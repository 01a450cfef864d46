"""Linear layers: ``out[t, n] = sum over k of x[t, k] * w[n, k]``, one fma chain over ascending k per output.

Legend: T rows, K inputs, N outputs, G groups. Weights are repacked once into panels ``[ceil(N / PANEL), K,
    PANEL]``,
so that the tile reads them in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import to_bf16
from deepinfer.kernels.cpu.fma_tile import FEW_PANELS, FEW_ROWS, PANEL, ROW_PANELS, TILE_ROWS, make_tile
from deepinfer.kernels.cpu.workers import Workers

ROW_BLOCK = 16 * TILE_ROWS
"""Rows that stay in the second-level cache while all panels pass over them; no effect on bits."""

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
_full_tile = make_tile(TILE_ROWS)
_few_rows = make_tile(FEW_ROWS, num_panels=FEW_PANELS)
_one_row = make_tile(1, num_panels=ROW_PANELS)


@dataclass(frozen=True)
class PackedLinear:
    """A weight in panel order.

    Attributes:
        panels: float32 [G, ceil(N / PANEL), K, PANEL]; columns past N are zero. G is 1 for a plain linear.
        num_outputs: N of one group.
    """

    panels: Float32
    num_outputs: int

    @property
    def num_inputs(self) -> int:
        """K of one group."""
        return int(self.panels.shape[2])


def pack_linear(weight: torch.Tensor) -> PackedLinear:
    """Repack ``weight`` float32 [N, K], or [G, N, K] for a grouped linear."""
    groups = weight.detach().to(torch.float32).numpy()
    groups = groups if groups.ndim == 3 else groups[None]
    num_groups, num_outputs, num_inputs = groups.shape
    num_panels = -(-num_outputs // PANEL)
    padded = np.zeros((num_groups, num_panels * PANEL, num_inputs), np.float32)
    padded[:, :num_outputs] = groups
    panels = padded.reshape(num_groups, num_panels, PANEL, num_inputs).transpose(0, 1, 3, 2)
    return PackedLinear(np.ascontiguousarray(panels), num_outputs)


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
def panel_rows(
    rows: Int64, count: int, panels: int, b: np.int64, depth: int, panel: int, out: np.int64, stride: int
) -> int:
    """One to ``TILE_ROWS`` rows times the panels from ``panel`` on; returns the panel after the last one.

    Args:
        rows: addresses of the rows; must hold ``TILE_ROWS`` of them, those past ``count`` repeat any row.
        count: rows wanted; further rows of ``out`` may be overwritten.
        panels: number of panels.
        b: address of the panel ``panel``.
        depth: K.
        panel: see above.
        out: address of the first result.
        stride: distance of the rows of ``out`` in elements.
    """
    table = np.int64(rows.ctypes.data)
    if count == 1 and panel + ROW_PANELS <= panels:
        _one_row(table, b, PANEL, depth, out, stride)
        return panel + ROW_PANELS
    if count <= FEW_ROWS and panel + FEW_PANELS <= panels:
        _few_rows(table, b, PANEL, depth, out, stride)
        return panel + FEW_PANELS
    _full_tile(table, b, PANEL, depth, out, stride)
    return panel + 1


@kernel
def linear_kernel(
    x: Float32, panels: Float32, out: Float32, num_outputs: int, bf16: bool, low: int, high: int
) -> None:
    """Rows ``low .. high`` of ``out [T, G * N]``; ``x`` is [T, G * K]."""
    num_groups, num_panels, depth, _ = panels.shape
    rows = np.empty(TILE_ROWS, np.int64)
    tile = np.empty((TILE_ROWS, ROW_PANELS * PANEL), np.float32)
    scratch = np.int64(tile.ctypes.data)
    stride = np.int64(x.shape[1]) * 4
    for block in range(low, high, ROW_BLOCK):
        block_end = min(block + ROW_BLOCK, high)
        for g in range(num_groups):
            x_base = np.int64(x.ctypes.data) + np.int64(g * depth * 4)
            p = 0
            while p < num_panels:
                b = np.int64(panels.ctypes.data) + np.int64((g * num_panels + p) * depth * PANEL) * 4
                first = g * num_outputs + p * PANEL
                following = p + 1
                row = block
                while row < block_end:
                    count = min(TILE_ROWS, block_end - row)
                    for r in range(TILE_ROWS):
                        rows[r] = x_base + min(row + r, block_end - 1) * stride
                    if count == TILE_ROWS and (p + 1) * PANEL <= num_outputs and not bf16:
                        place = np.int64(out.ctypes.data) + np.int64(row * out.shape[1] + first) * 4
                        _full_tile(np.int64(rows.ctypes.data), b, PANEL, depth, place, out.shape[1])
                    else:
                        # several panels at a time only if no full tile walks along
                        limit = num_panels if block_end - block < TILE_ROWS else p + 1
                        following = panel_rows(rows, count, limit, b, depth, p, scratch, ROW_PANELS * PANEL)
                        width = min(following * PANEL, num_outputs) - p * PANEL
                        for r in range(count):
                            copy_row(tile[r], out[row + r, first : first + width], bf16)
                    row += count
                p = following


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
        lambda low, high: linear_kernel(rows, weight.panels, out, weight.num_outputs, bf16, low, high),
        item_cost=weight.panels.size,
    )
    return torch.from_numpy(out)
