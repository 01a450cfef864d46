"""Sparse attention over window slots and selected compressed slots, with a sink.

model.md sections 3.5 and 3.6.

Legend: T rows, H heads, C latent width, W window slots, K selected slots. Keys and values are the same rows.
    Per row:
the visible slots are gathered in slot order; scores are chains over ascending channels; the denominator and
the output are chains over ascending slots, the sink last in the denominator. A slot of -1 is skipped, which
equals adding the exact zero it stands for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import exp
from deepinfer.kernels.cpu.fma_tile import PANEL, TILE_ROWS, VECTOR, make_tile
from deepinfer.kernels.cpu.key_tile import make_key_tile
from deepinfer.kernels.cpu.linear import copy_row
from deepinfer.kernels.cpu.selection import ordered, unordered
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
HEADS = 4
_few_heads = make_key_tile(HEADS)
_many_heads = make_tile(TILE_ROWS)
_values = make_tile(HEADS, gathered=True)
KEY_GROUP = max(TILE_ROWS, VECTOR)
"""Room behind the keys for whole tiles of them."""
_ZERO, _INFINITY = np.float32(0.0), np.float32(np.inf)


@inlined
def _find(pool: Float32, slots: Int64, count: int, keys: Int64) -> int:
    """Append the addresses of the visible rows of ``slots`` [n] to the ``count`` in ``keys``."""
    base, step = np.int64(pool.ctypes.data), np.int64(pool.shape[1] * 4)
    for i in range(slots.shape[0]):
        if slots[i] >= 0:
            keys[count] = base + slots[i] * step
            count += 1
    return count


@inlined
def _scores(
    q: Float32, keys: Int64, count: int, packed: Float32, tall: Float32, rows: Int64, z: Float32
) -> None:
    """``z[h, j]`` = q[h] . key[j] for q [H, C]; heads past H are any. ``packed``, ``tall`` and ``rows`` are
    scratch.

    Whole tiles of keys are read, and whole groups of VECTOR scores written if they are those of few heads.
    """
    num_heads, width = q.shape
    columns = tall.shape[1]
    table = np.int64(keys.ctypes.data)
    if columns == 0:
        for first in range(0, z.shape[0], HEADS):
            for h in range(HEADS):
                rows[h] = np.int64(q.ctypes.data) + np.int64(min(first + h, num_heads - 1)) * width * 4
            for j in range(0, count, VECTOR):
                target = np.int64(z.ctypes.data) + np.int64(first * z.shape[1] + j) * 4
                _few_heads(table + j * 8, np.int64(rows.ctypes.data), width, target, z.shape[1])
        return
    queries = np.int64(packed.ctypes.data)
    for first in range(0, z.shape[0], columns):
        for h in range(columns):
            source = q[first + h]
            for c in range(width):
                packed[c, h] = source[c]
        for j in range(0, count, TILE_ROWS):
            target = np.int64(tall.ctypes.data) + np.int64(j * columns) * 4
            _many_heads(table + j * 8, queries, PANEL, width, target, PANEL)
        for h in range(columns):
            row = z[first + h, :count]
            for j in range(row.shape[0]):
                row[j] = tall[j, h]


@inlined
def _exponentials(z: Float32, scale: np.float32) -> np.float32:
    """Turn the scores [n] of one head into ``exp(z * scale - M)`` in place; returns M, the largest."""
    top = ordered(-_INFINITY)
    for j in range(z.shape[0]):
        z[j] = z[j] * scale
        top = max(top, ordered(z[j]))  # integers: a float maximum would not be vectorised
    largest = unordered(top)
    for j in range(z.shape[0]):
        z[j] = exp(z[j] - largest)
    return largest


@inlined
def _softmax(z: Float32, count: int, sink: Float32, scale: np.float32, den: Float32) -> None:
    """Exponentials of all heads in place and their denominators; four chains run side by side, sink last."""
    for first in range(0, z.shape[0], HEADS):
        z0, z1, z2, z3 = z[first, :count], z[first + 1, :count], z[first + 2, :count], z[first + 3, :count]
        m0, m1 = _exponentials(z0, scale), _exponentials(z1, scale)
        m2, m3 = _exponentials(z2, scale), _exponentials(z3, scale)
        t0, t1, t2, t3 = _ZERO, _ZERO, _ZERO, _ZERO
        for j in range(count):
            t0 = t0 + z0[j]
            t1 = t1 + z1[j]
            t2 = t2 + z2[j]
            t3 = t3 + z3[j]
        totals, largest = (t0, t1, t2, t3), (m0, m1, m2, m3)
        for h in range(min(HEADS, sink.shape[0] - first)):
            den[first + h] = totals[h] + exp(sink[first + h] - largest[h])


@inlined
def _mix_values(z: Float32, count: int, keys: Int64, den: Float32, rows: Int64, out: Float32) -> None:
    """``out[h]`` = sum over slots of ``z[h, j] * key[j]``, divided by ``den[h]``; out is [H padded, C]."""
    width = out.shape[1]
    table, target = np.int64(keys.ctypes.data), np.int64(out.ctypes.data)
    for first in range(0, out.shape[0], HEADS):
        for h in range(HEADS):
            rows[h] = np.int64(z.ctypes.data) + np.int64(first + h) * z.shape[1] * 4
        for c in range(0, width, PANEL):
            place = target + np.int64(first * width + c) * 4
            _values(np.int64(rows.ctypes.data), table, c, count, place, width)
    for h in range(den.shape[0]):
        row, divisor = out[h], den[h]
        for c in range(width):
            row[c] = row[c] / divisor


@kernel
def attention_kernel(
    q: Float32,
    window: Float32,
    window_slots: Int64,
    main: Float32,
    main_slots: Int64,
    sink: Float32,
    scale: np.float32,
    bf16: bool,
    out: Float32,
    low: int,
    high: int,
) -> None:
    """Rows ``low .. high`` of ``sparse_attention`` into ``out`` [T, H, C]."""
    num_heads, width = q.shape[1], q.shape[2]
    columns = PANEL if num_heads % PANEL == 0 else 0
    padded_heads = (num_heads + HEADS - 1) // HEADS * HEADS
    capacity = window_slots.shape[1] + main_slots.shape[1] + KEY_GROUP
    keys = np.empty(capacity, np.int64)
    tall = np.empty((capacity, columns), np.float32)
    z = np.zeros((padded_heads, capacity), np.float32)
    packed = np.empty((width, columns), np.float32)
    mixed = np.empty((padded_heads, width), np.float32)
    rows = np.empty(HEADS, np.int64)
    den = np.empty(num_heads, np.float32)
    for row in range(low, high):
        count = _find(window, window_slots[row], 0, keys)
        count = _find(main, main_slots[row], count, keys)
        if count == 0:
            out[row] = _ZERO
        else:
            for i in range(count, count + KEY_GROUP):
                keys[i] = keys[count - 1]  # a tile reads whole groups of keys
            _scores(q[row], keys, count, packed, tall, rows, z)
            _softmax(z, count, sink, scale, den)
            if bf16:
                for h in range(num_heads):
                    copy_row(z[h], z[h, :count], True)
            _mix_values(z, count, keys, den, rows, mixed)
            for h in range(num_heads):
                copy_row(mixed[h], out[row, h], bf16)


def sparse_attention(
    q: torch.Tensor,
    window: torch.Tensor,
    window_slots: torch.Tensor,
    main: torch.Tensor,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
    bf16: bool,
    workers: Workers,
) -> torch.Tensor:
    """One softmax over window and selected slots together.

    Args:
        q: float32 [T, H, C].
        window: float32 [P, C] pool of sliding-window latents.
        window_slots: int64 [T, W], pool rows in ascending position, -1 where invisible.
        main: float32 [P', C] pool of compressed latents (any pool if ``main_slots`` has no columns).
        main_slots: int64 [T, K], pool rows in ascending entry, -1 where absent.
        sink: float32 [H], scaled logit without a value.

    Returns:
        float32 [T, H, C]; a row without any visible slot is zero.

    Raises:
        ValueError: C is not a multiple of the panel width.
    """
    if q.shape[2] % PANEL:
        raise ValueError(f"sparse_attention: latent width {q.shape[2]} is not a multiple of {PANEL}")
    queries = q.contiguous().numpy()
    near, far = window.numpy(), main.numpy()
    near_slots, far_slots = window_slots.contiguous().numpy(), main_slots.contiguous().numpy()
    sinks, out = sink.numpy(), np.empty_like(queries)
    scale = np.float32(queries.shape[2] ** -0.5)
    workers.run(
        queries.shape[0],
        1,
        lambda low, high: attention_kernel(
            queries, near, near_slots, far, far_slots, sinks, scale, bf16, out, low, high
        ),
        parts_per_thread=4,
        item_cost=40 * queries.shape[1] * queries.shape[2] * 10,
    )
    return torch.from_numpy(out)
