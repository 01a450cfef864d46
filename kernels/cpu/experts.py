"""Mixture of experts: routed SwiGLU experts and the shared one, summed per token in ascending expert order.

Legend: T rows, D model width, I inner width, E experts, k experts a token. Rows are gathered by expert, so a
    weight is
read once for all its rows; a row's products are the same chains whichever rows share the expert (model.md
section 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import silu, to_bf16
from deepinfer.kernels.cpu.expert_products import CODES, FEW_ROWS, Place, products
from deepinfer.kernels.cpu.fma_tile import PANEL, ROW_PANELS, TILE_ROWS
from deepinfer.kernels.cpu.packed_experts import PackedExperts
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
ROWS_PER_TASK = 16 * TILE_ROWS
_ZERO = np.float32(0.0)


@inlined
def _activate(gate: Float32, up: Float32, weight: np.float32, limit: np.float32, bf16: bool) -> None:
    """Replace ``gate`` by ``silu(gate) * up * weight``, with the clamp of section 5.3."""
    if bf16:
        for n in range(gate.shape[0]):
            gate[n], up[n] = to_bf16(gate[n]), to_bf16(up[n])
    if limit > _ZERO:
        for n in range(gate.shape[0]):
            gate[n], up[n] = min(gate[n], limit), max(min(up[n], limit), -limit)
    for n in range(gate.shape[0]):
        gate[n] = silu(gate[n]) * up[n] * weight
    if bf16:
        for n in range(gate.shape[0]):
            gate[n] = to_bf16(gate[n])


@kernel
def experts_kernel(
    x: Float32,
    pair_rows: Int64,
    pair_weights: Float32,
    task_expert: Int64,
    task_start: Int64,
    gate: Place,
    up: Place,
    down: Place,
    limit: np.float32,
    bf16: bool,
    out: Float32,
    low: int,
    high: int,
) -> None:
    """Tasks ``low .. high``: a task is a run of at most ROWS_PER_TASK (row, expert) pairs of one expert.

    ``out`` is [pairs, panels of down * PANEL].
    """
    inner = gate[2] * PANEL
    rows = np.empty(ROWS_PER_TASK, np.int64)
    group = np.empty(TILE_ROWS, np.int64)
    tile = np.empty((TILE_ROWS, ROW_PANELS * PANEL), np.float32)
    gates = np.empty((ROWS_PER_TASK, inner), np.float32)
    ups = np.empty((ROWS_PER_TASK, inner), np.float32)
    depth = 0
    for task in range(low, high):
        if task_start[task + 1] - task_start[task] > FEW_ROWS:
            depth = max(gate[3] * (gate[1] == CODES), up[3] * (up[1] == CODES), down[3] * (down[1] == CODES))
    plain = np.empty((depth, PANEL), np.float32)
    x_base, x_step = np.int64(x.ctypes.data), np.int64(x.shape[1] * 4)
    for task in range(low, high):
        e, first, last = task_expert[task], task_start[task], task_start[task + 1]
        count = last - first
        for i in range(count):
            rows[i] = x_base + pair_rows[first + i] * x_step
        products(rows, count, gate, e, gates, group, tile, plain)
        products(rows, count, up, e, ups, group, tile, plain)
        for i in range(count):
            _activate(gates[i], ups[i], pair_weights[first + i], limit, bf16)
            rows[i] = np.int64(gates.ctypes.data) + np.int64(i * inner) * 4
        products(rows, count, down, e, out[first:last], group, tile, plain)
        if bf16:
            for pair in range(first, last):
                row = out[pair]
                for d in range(row.shape[0]):
                    row[d] = to_bf16(row[d])


@kernel
def combine_kernel(
    routed: Float32, place: Int64, shared: Float32, out: Float32, bf16: bool, low: int, high: int
) -> None:
    """Sums of rows ``low .. high``: their pairs in ``place`` [T, k] in order, then the shared expert."""
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


@kernel
def sort_pairs_kernel(
    ids: Int64, weights: Float32, pair_rows: Int64, pair_weights: Float32, place: Int64, counts: Int64
) -> None:
    """Order the (row, expert) pairs of ``ids`` [T, k] by expert, then by row.

    Fills ``pair_rows`` and ``pair_weights`` [T * k], ``place`` [T, k] (where each pair went) and ``counts``
    [E], pairs of each expert; ``counts`` comes in as zeros.
    """
    for row in range(ids.shape[0]):
        for i in range(ids.shape[1]):
            counts[ids[row, i]] += 1
    following = np.cumsum(counts) - counts
    for row in range(ids.shape[0]):
        for i in range(ids.shape[1]):
            pair = following[ids[row, i]]
            following[ids[row, i]] += 1
            place[row, i] = pair
            pair_rows[pair] = row
            pair_weights[pair] = weights[row, i]


@dataclass(frozen=True)
class _Work:
    """Tasks of one set of experts over its sorted pairs; ``out`` [pairs, D] receives their outputs."""

    pair_rows: Int64
    pair_weights: Float32
    task_expert: Int64
    task_start: Int64
    experts: PackedExperts
    out: Float32

    def run(self, x: Float32, limit: np.float32, bf16: bool, low: int, high: int) -> None:
        """Compute tasks ``low .. high``."""
        gate, up, down = self.experts.gate.place, self.experts.up.place, self.experts.down.place
        experts_kernel(
            x,
            self.pair_rows,
            self.pair_weights,
            self.task_expert,
            self.task_start,
            gate,
            up,
            down,
            limit,
            bf16,
            self.out,
            low,
            high,
        )


def _work(pair_rows: Int64, pair_weights: Float32, counts: Int64, experts: PackedExperts) -> _Work:
    """Cut the pairs of every expert, ``counts`` [E], into tasks."""
    task_expert, task_start, start = [], [0], 0
    for e, count in enumerate(counts.tolist()):
        for offset in range(0, count, ROWS_PER_TASK):
            task_expert.append(e)
            task_start.append(start + min(count, offset + ROWS_PER_TASK))
        start += count
    out = np.empty((len(pair_rows), experts.down.place[2] * PANEL), np.float32)
    tasks, starts = np.array(task_expert, np.int64), np.array(task_start, np.int64)
    return _Work(pair_rows, pair_weights, tasks, starts, experts, out)


def _routed(ids: Int64, weights: Float32, experts: PackedExperts) -> tuple[_Work, Int64]:
    pair_rows, place = np.empty(ids.size, np.int64), np.empty_like(ids)
    pair_weights, counts = np.empty(ids.size, np.float32), np.zeros(experts.num_experts, np.int64)
    sort_pairs_kernel(ids, weights, pair_rows, pair_weights, place, counts)
    return _work(pair_rows, pair_weights, counts, experts), place


def run_moe(
    x: Float32,
    ids: Int64,
    weights: Float32,
    experts: PackedExperts,
    shared: PackedExperts,
    limit: float,
    bf16: bool,
    workers: Workers,
) -> Float32:
    """``moe`` on arrays."""
    num_rows = len(x)
    routed, place = _routed(ids, weights, experts)
    everyone, ones = np.arange(num_rows, dtype=np.int64), np.ones(num_rows, np.float32)
    common = _work(everyone, ones, np.array([num_rows], np.int64), shared)
    num_common, clamp = len(common.task_expert), np.float32(limit)
    num_tasks = num_common + len(routed.task_expert)

    def part(low: int, high: int) -> None:
        """The shared expert's tasks come first: they are the longest."""
        if low < num_common:
            common.run(x, clamp, bf16, low, min(high, num_common))
        if high > num_common:
            routed.run(x, clamp, bf16, max(low - num_common, 0), high - num_common)

    pairs = num_rows + len(routed.pair_rows)
    item_cost = pairs * experts.cost // max(num_tasks, 1)
    workers.run(num_tasks, 1, part, parts_per_thread=4, item_cost=item_cost)
    out = np.empty_like(x)
    workers.run(
        num_rows,
        1,
        lambda low, high: combine_kernel(routed.out, place, common.out, out, bf16, low, high),
    )
    return out


def moe(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    experts: PackedExperts,
    shared: PackedExperts,
    limit: float,
    bf16: bool,
    workers: Workers,
) -> torch.Tensor:
    """Weighted experts of every row plus the shared expert (model.md section 5.2).

    Args:
        x: float32 [T, D].
        expert_ids: int64 [T, k], ascending in every row.
        weights: float32 [T, k].
        limit: SwiGLU clamp, 0 for none.

    Returns:
        float32 [T, D]: ``((0 + y_e1) + y_e2 ...) + shared``, experts ascending.
    """
    rows, ids = x.contiguous().numpy(), expert_ids.contiguous().numpy()
    shares = weights.contiguous().numpy()
    return torch.from_numpy(run_moe(rows, ids, shares, experts, shared, limit, bf16, workers))
