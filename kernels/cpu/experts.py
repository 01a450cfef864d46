"""Mixture of experts: routed SwiGLU experts and the shared one, summed per token in ascending expert order.

Legend: T rows, D model width, I inner width, E experts, k experts a token. Rows are gathered by expert, so a
    weight is
read once for all its rows; a row's products are the same chains whichever rows share the expert (model.md
section 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import silu, to_bf16
from deepinfer.kernels.cpu.fma_tile import PANEL, TILE_ROWS, make_tile
from deepinfer.kernels.cpu.linear import copy_row, pack_linear
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
ROWS_PER_TASK = 16 * TILE_ROWS
_full_tile = make_tile(TILE_ROWS)
_one_row = make_tile(1)
_ZERO = np.float32(0.0)


@dataclass(frozen=True)
class PackedExperts:
    """Panels float32 [E, panels, K, PANEL] of gate and up (K = D) and of down (K = I, padded)."""

    gate: Float32
    up: Float32
    down: Float32
    inner: int
    width: int


def pack_experts(
    num_experts: int, load: Callable[[int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
) -> PackedExperts:
    """Pack experts one at a time; ``load(e)`` gives gate [I, D], up [I, D] and down [D, I] of expert e."""
    gate = up = down = None
    inner = width = 0
    for e in range(num_experts):
        parts = [pack_linear(weight) for weight in load(e)]
        if gate is None or up is None or down is None:
            inner, width = parts[0].num_outputs, parts[0].num_inputs
            gate, up, down = (np.empty((num_experts, *part.panels.shape[1:]), np.float32) for part in parts)
        gate[e], up[e], down[e] = (part.panels[0] for part in parts)
    if gate is None or up is None or down is None:
        raise ValueError("pack_experts: a layer needs at least one expert")
    return PackedExperts(gate, up, down, inner, width)


@inlined
def _panel_product(rows: Int64, count: int, panels: Float32, e: int, p: int, tile: Float32) -> None:
    depth = panels.shape[2]
    b = np.int64(panels.ctypes.data) + np.int64((e * panels.shape[1] + p) * depth * PANEL) * 4
    if count == 1:
        _one_row(np.int64(rows.ctypes.data), b, PANEL, depth, np.int64(tile.ctypes.data), PANEL)
    else:
        _full_tile(np.int64(rows.ctypes.data), b, PANEL, depth, np.int64(tile.ctypes.data), PANEL)


@inlined
def _activate(
    gate: Float32, up: Float32, weight: np.float32, limit: np.float32, bf16: bool, hidden: Float32
) -> None:
    """``silu(gate) * up * weight`` with the clamp, for as many values as ``hidden`` holds."""
    for n in range(hidden.shape[0]):
        g, u = gate[n], up[n]
        if bf16:
            g, u = to_bf16(g), to_bf16(u)
        if limit > _ZERO:
            g, u = min(g, limit), max(min(u, limit), -limit)
        h = silu(g) * u * weight
        hidden[n] = to_bf16(h) if bf16 else h


@kernel
def _experts_kernel(
    x: Float32, pair_rows: Int64, pair_weights: Float32, task_expert: Int64, task_start: Int64,
    gate: Float32, up: Float32, down: Float32, inner: int, limit: np.float32, bf16: bool,
    out: Float32, low: int, high: int,
) -> None:  # fmt: skip
    """Tasks ``low .. high``: a task is a run of at most ROWS_PER_TASK (row, expert) pairs of one expert."""
    width = x.shape[1]
    rows = np.empty(TILE_ROWS, np.int64)
    tile_g = np.empty((TILE_ROWS, PANEL), np.float32)
    tile_u = np.empty((TILE_ROWS, PANEL), np.float32)
    hidden = np.empty((ROWS_PER_TASK + TILE_ROWS, inner), np.float32)
    x_base, h_base = np.int64(x.ctypes.data), np.int64(hidden.ctypes.data)
    for task in range(low, high):
        e, first, last = task_expert[task], task_start[task], task_start[task + 1]
        for p in range(gate.shape[1]):
            columns = min(PANEL, inner - p * PANEL)
            pair = first
            while pair < last:
                count = min(TILE_ROWS, last - pair)
                count = 1 if count <= 2 else count
                for r in range(TILE_ROWS):
                    rows[r] = x_base + pair_rows[min(pair + r, last - 1)] * width * 4
                _panel_product(rows, count, gate, e, p, tile_g)
                _panel_product(rows, count, up, e, p, tile_u)
                for r in range(count):
                    target = hidden[pair - first + r, p * PANEL : p * PANEL + columns]
                    _activate(tile_g[r], tile_u[r], pair_weights[pair + r], limit, bf16, target)
                pair += count
        for p in range(down.shape[1]):
            columns = min(PANEL, width - p * PANEL)
            pair = first
            while pair < last:
                count = min(TILE_ROWS, last - pair)
                count = 1 if count <= 2 else count
                for r in range(TILE_ROWS):
                    rows[r] = h_base + min(pair - first + r, last - first - 1) * inner * 4
                _panel_product(rows, count, down, e, p, tile_g)
                for r in range(count):
                    copy_row(tile_g[r], out[pair + r, p * PANEL : p * PANEL + columns], bf16)
                pair += count


@kernel
def _combine_kernel(
    routed: Float32, place: Int64, shared: Float32, out: Float32, bf16: bool, low: int, high: int
) -> None:
    for row in range(low, high):
        target = out[row]
        target[:] = _ZERO
        for i in range(place.shape[1]):
            part = routed[place[row, i]]
            for d in range(target.shape[0]):
                target[d] = target[d] + part[d]
        common = shared[row]
        for d in range(target.shape[0]):
            total = target[d] + common[d]
            target[d] = to_bf16(total) if bf16 else total


def _run_experts(
    x: Float32, pair_rows: Int64, pair_weights: Float32, counts: Int64, experts: PackedExperts, limit: float,
        bf16: bool,
    workers: Workers,
) -> Float32:  # fmt: skip
    """Outputs [pairs, D] for pairs sorted by expert, ``counts[e]`` pairs of expert e."""
    task_expert, task_start, start = [], [0], 0
    for e, count in enumerate(counts.tolist()):
        for offset in range(0, count, ROWS_PER_TASK):
            task_expert.append(e)
            task_start.append(start + min(count, offset + ROWS_PER_TASK))
        start += count
    out = np.empty((len(pair_rows), experts.width), np.float32)
    tasks, starts = np.array(task_expert, np.int64), np.array(task_start, np.int64)
    workers.run(
        len(tasks),
        1,
        lambda low, high: _experts_kernel(
            x, pair_rows, pair_weights, tasks, starts, experts.gate, experts.up, experts.down, experts.inner,
            np.float32(limit), bf16, out, low, high,
        ),
    )  # fmt: skip
    return out


def moe(
    x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, experts: PackedExperts, shared:
        PackedExperts,
    limit: float, bf16: bool, workers: Workers,
) -> torch.Tensor:  # fmt: skip
    """Weighted experts of every row plus the shared expert (model.md section 5.2).

    Args:
        x: float32 [T, D].
        expert_ids: int64 [T, k], ascending in every row.
        weights: float32 [T, k].
        limit: SwiGLU clamp, 0 for none.

    Returns:
        float32 [T, D]: ``((0 + y_e1) + y_e2 ...) + shared``, experts ascending.
    """
    rows = x.contiguous().numpy()
    num_rows, per_token = expert_ids.shape
    flat = expert_ids.contiguous().numpy().reshape(-1)
    order = np.argsort(flat, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    counts = np.bincount(flat, minlength=experts.gate.shape[0]).astype(np.int64)
    pair_weights = np.ascontiguousarray(weights.contiguous().numpy().reshape(-1)[order])
    routed = _run_experts(rows, order // per_token, pair_weights, counts, experts, limit, bf16, workers)
    everyone = np.arange(num_rows, dtype=np.int64)
    ones = np.ones(num_rows, np.float32)
    common = _run_experts(rows, everyone, ones, np.array([num_rows], np.int64), shared, limit, bf16, workers)
    out = np.empty_like(rows)
    places = place.reshape(num_rows, per_token)
    workers.run(num_rows, 1, lambda low, high: _combine_kernel(routed, places, common, out, bf16, low, high))
    return torch.from_numpy(out)
