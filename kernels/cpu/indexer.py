"""Index scores and two-level selection of compressed entries (model.md sections 4.3 to 4.5).

Legend: T rows, Hi index heads, Ci index width, P entries in the pool, n visible entries of a row. Keys of
    sixteen or
more entries are turned once into a panel, and all heads of several rows pass over it. A dot product is a
chain over ascending channels, a score a chain over ascending heads; the vectors run over entries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import fma, to_bf16
from deepinfer.kernels.cpu.fma_tile import PANEL, TILE_ROWS, make_tile
from deepinfer.kernels.cpu.selection import NUM_BINS, ordered, select_top
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
GROUP_ROWS = 8 * TILE_ROWS
"""Rows that share the turned keys of a panel; no effect on bits."""
_tile = make_tile(TILE_ROWS)
_ZERO = np.float32(0.0)
_NEWEST = np.int32(0x7FFFFFFF)


@inlined
def _turn_keys(pool_keys: Float32, entries: Int64, count: int, panel: Float32) -> None:
    """``panel[c, i]`` = channel c of the key at pool row ``entries[i]``.

    Columns past ``count`` repeat the last.
    """
    for i in range(PANEL):
        source = pool_keys[entries[min(i, count - 1)]]
        for c in range(panel.shape[0]):
            panel[c, i] = source[c]


@inlined
def _add_heads(dots: Float32, w: Float32, bf16: bool, scores: Float32) -> None:
    """``scores[i]`` = chain over ascending heads of ``relu(dots[h, i]) * w[h]``."""
    scores[:] = _ZERO
    for h in range(w.shape[0]):
        weight, part = w[h], dots[h]
        if bf16:
            for i in range(scores.shape[0]):
                scores[i] = scores[i] + to_bf16(max(to_bf16(part[i]), _ZERO) * weight)
        else:
            for i in range(scores.shape[0]):
                scores[i] = fma(max(part[i], _ZERO), weight, scores[i])
    if bf16:
        for i in range(scores.shape[0]):
            scores[i] = to_bf16(scores[i])


@inlined
def _score_panel(
    q: Float32,
    w: Float32,
    first: int,
    num_rows: int,
    panel: Float32,
    width: int,
    rows: Int64,
    dots: Float32,
    bf16: bool,
    scores: Float32,
    place: int,
) -> None:
    """Scores of one panel for rows ``first .. first + num_rows``, written at ``scores[row, place.

    Place + width]``.
    """
    num_heads, depth = q.shape[1], q.shape[2]
    vectors = num_rows * num_heads
    start = np.int64(q.ctypes.data) + np.int64(first * num_heads * depth) * 4
    for v in range(0, vectors, TILE_ROWS):
        for r in range(TILE_ROWS):
            rows[r] = start + np.int64(min(v + r, vectors - 1) * depth) * 4
        target = np.int64(dots.ctypes.data) + np.int64(v * PANEL) * 4
        _tile(np.int64(rows.ctypes.data), np.int64(panel.ctypes.data), PANEL, depth, target, PANEL)
    for row in range(num_rows):
        own = dots[row * num_heads : (row + 1) * num_heads]
        _add_heads(own, w[first + row], bf16, scores[row, place : place + width])


@inlined
def _order(scores: Float32, keys: Int32) -> None:
    for j in range(keys.shape[0]):
        keys[j] = ordered(scores[j])


@inlined
def _candidate_blocks(
    keys: Int32, count: int, size: int, blocks: Int32, best: Int32, pool: Int32, bins: Int32
) -> None:
    """The blocks with the largest maximum; the newest block always; ascending, -1 after the last."""
    num_blocks = (count + size - 1) // size
    for b in range(num_blocks):
        largest = keys[b * size]
        for j in range(b * size + 1, min(count, (b + 1) * size)):
            largest = max(largest, keys[j])
        best[b] = largest
    if num_blocks > 0:
        best[num_blocks - 1] = _NEWEST
    kept = select_top(best, num_blocks, blocks.shape[0], blocks, pool, bins)
    blocks[kept:] = -1


@kernel
def _index_kernel(
    q: Float32,
    w: Float32,
    pool_keys: Float32,
    base: Int64,
    counts: Int64,
    block_size: int,
    bf16: bool,
    longest: int,
    entries: Int32,
    blocks: Int32,
    low: int,
    high: int,
) -> None:
    """Select for rows ``low .. high``; candidate blocks too if ``blocks`` has columns."""
    top, num_blocks = entries.shape[1], blocks.shape[1]
    panel = np.empty((q.shape[2], PANEL), np.float32)
    members = np.empty(PANEL, np.int64)
    rows = np.empty(TILE_ROWS, np.int64)
    dots = np.empty((GROUP_ROWS * q.shape[1] + TILE_ROWS, PANEL), np.float32)
    scores = np.empty((GROUP_ROWS, longest + PANEL), np.float32)
    keys = np.zeros(longest + 1, np.int32)
    best = np.empty(longest + 1, np.int32)
    pool = np.empty(longest + 1, np.int32)
    bins = np.empty(NUM_BINS, np.int32)
    first = low
    while first < high:
        num_rows, visible = 1, counts[first]
        while first + num_rows < high and num_rows < GROUP_ROWS and base[first + num_rows] == base[first]:
            visible = max(visible, counts[first + num_rows])
            num_rows += 1
        # where everything is kept, no score can matter
        needed = visible > top or (num_blocks > 0 and (visible + block_size - 1) // block_size > num_blocks)
        if needed:
            for j in range(0, visible, PANEL):
                width = min(PANEL, visible - j)
                for i in range(width):
                    members[i] = base[first] + j + i
                _turn_keys(pool_keys, members, width, panel)
                _score_panel(q, w, first, num_rows, panel, width, rows, dots, bf16, scores, j)
        for row in range(num_rows):
            count = counts[first + row]
            if needed:
                _order(scores[row], keys[:count])
            kept = select_top(keys, count, top, entries[first + row], pool, bins)
            entries[first + row, kept:] = -1
            if num_blocks > 0:
                _candidate_blocks(keys, count, block_size, blocks[first + row], best, pool, bins)
        first += num_rows


@kernel
def _reindex_kernel(
    q: Float32,
    w: Float32,
    pool_keys: Float32,
    base: Int64,
    counts: Int64,
    block_size: int,
    bf16: bool,
    blocks: Int32,
    entries: Int32,
    low: int,
    high: int,
) -> None:
    """Like ``_index_kernel``, over the entries of each row's own candidate blocks."""
    capacity = blocks.shape[1] * block_size
    panel = np.empty((q.shape[2], PANEL), np.float32)
    members = np.empty(PANEL, np.int64)
    rows = np.empty(TILE_ROWS, np.int64)
    dots = np.empty((q.shape[1] + TILE_ROWS, PANEL), np.float32)
    scores = np.empty((1, capacity + PANEL), np.float32)
    usable = np.empty(capacity + 1, np.int32)
    keys = np.zeros(capacity + 1, np.int32)
    chosen = np.empty(entries.shape[1], np.int32)
    pool = np.empty(capacity + 1, np.int32)
    bins = np.empty(NUM_BINS, np.int32)
    for row in range(low, high):
        count = 0
        for i in range(blocks.shape[1]):
            if blocks[row, i] >= 0:
                for j in range(
                    blocks[row, i] * block_size, min(counts[row], (blocks[row, i] + 1) * block_size)
                ):
                    usable[count] = j
                    count += 1
        if count > entries.shape[1]:
            for j in range(0, count, PANEL):
                width = min(PANEL, count - j)
                for i in range(width):
                    members[i] = base[row] + usable[j + i]
                _turn_keys(pool_keys, members, width, panel)
                _score_panel(q, w, row, 1, panel, width, rows, dots, bf16, scores, j)
            _order(scores[0], keys[:count])
        kept = select_top(keys, count, entries.shape[1], chosen, pool, bins)
        for i in range(kept):
            entries[row, i] = usable[chosen[i]]
        entries[row, kept:] = -1


def index_select(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    top: int,
    num_blocks: int,
    block_size: int,
    bf16: bool,
    workers: Workers,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Top entries of every row over all its visible entries, and its candidate blocks.

    Args:
        q: float32 [T, Hi, Ci] index queries.
        w: float32 [T, Hi] head weights.
        keys: float32 [P, Ci] pool of index keys.
        base: int64 [T], pool row of the first entry of the row's sequence; equal for rows of one sequence.
        counts: int64 [T], visible entries n.
        top: how many entries to keep.
        num_blocks: candidate blocks to keep, 0 for none.

    Returns:
        entries int32 [T, top] and blocks int32 [T, num_blocks]: indices inside the sequence, ascending, then
        -1.
    """
    queries, weights, pool = q.contiguous().numpy(), w.contiguous().numpy(), keys.numpy()
    bases, visible = base.numpy(), counts.numpy()
    entries = np.empty((queries.shape[0], top), np.int32)
    blocks = np.empty((queries.shape[0], num_blocks), np.int32)
    longest = int(visible.max(initial=0))
    workers.run(
        queries.shape[0],
        GROUP_ROWS,
        lambda low, high: _index_kernel(
            queries, weights, pool, bases, visible, block_size, bf16, longest, entries, blocks, low, high
        ),
        parts_per_thread=8,
        item_cost=longest * queries.shape[1] * queries.shape[2],
    )
    return torch.from_numpy(entries), torch.from_numpy(blocks)


def index_select_within(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
    bf16: bool,
    workers: Workers,
) -> torch.Tensor:
    """Top entries among each row's candidate ``blocks`` int32 [T, Nb]; otherwise as ``index_select``."""
    queries, weights, pool = q.contiguous().numpy(), w.contiguous().numpy(), keys.numpy()
    bases, visible, allowed = base.numpy(), counts.numpy(), blocks.contiguous().numpy()
    entries = np.empty((queries.shape[0], top), np.int32)
    workers.run(
        queries.shape[0],
        1,
        lambda low, high: _reindex_kernel(
            queries, weights, pool, bases, visible, block_size, bf16, allowed, entries, low, high
        ),
        item_cost=allowed.shape[1] * block_size * queries.shape[1] * queries.shape[2],
    )
    return torch.from_numpy(entries)
