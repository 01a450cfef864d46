"""Sparse attention on packed caches for Hopper chips, profile fast: one launch, two programs a row.

The slots of a row are cut into tiles of 64, window first; even tiles are one program's, odd ones the
other's. In a program two warp groups fetch records and decode them into shared memory, one computes scores,
softmax so far and weights (both in ``hopper_weights.py``), two add weighted values; they are at different
tiles at a time. The two that add have nothing to do at first: they fetch queries and the first tile. In the
end each program leaves the other one its sums of half of the channels and finishes the rest: a sum of two
terms has one order. Which tile goes where follows from slot numbers alone, so every value is one fixed
sequence of operations, however many rows there are.

Written in Gluon, because what matters here, who waits for whom, cannot be said in Triton. There is no
interpreter for it: ``packed_attention.py`` is the same function for other chips and for tests without one,
and ``benchmarks/gpu_layers.py`` compares both with float64 on the device.

Legend: T rows, H heads, C = 512 channels, W window slots, K selected slots.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.hopper_rows import (
    PARTIAL,
    VALUES,
    WARPS,
    finish,
    hidden,
    keep_queries,
    leave_values,
    load_queries,
)
from deepinfer.kernels.gpu.hopper_tiles import SLOTS, TILE, TILE_WORDS, load_near
from deepinfer.kernels.gpu.hopper_weights import (
    SPLITS,
    decode,
    decode_near_half,
    near_slots_of,
    score,
)
from deepinfer.kernels.gpu.launching import Block, ceil_div
from deepinfer.kernels.gpu.packed_attention import words_of, words_of_record
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.warp_groups import (
    after_launches_before,
    next_may_begin,
    warp_device,
    warp_kernel,
    warp_launch,
)

WIDTH = 512
_REGISTERS = (64, 48)
"""Of a thread that scores, of one that decodes; 160 are left for one that adds. With eight less for the last,
the compiler moves accumulators to memory and back in every tile.
"""
_ROWS = 512
"""Rows of one launch, if the caller has no workspace."""


@warp_device
def _add(
    ends: Block,
    pools: Block,
    counts: Block,
    place: Block,
    shared: Block,
    NEAR: gl.constexpr,
    NUM_TILES: gl.constexpr,
) -> None:
    """Queries and the first tile, weighted values [64, 512] of all tiles, and the end of the row. The half of
    the channels that this program finishes is apart from the half that it leaves to the other.
    """
    queries, tiles, slots, weights, sums, _, scaled, known, empty, done = shared
    _, _, split = place
    halves = tiles._reinterpret(gl.bfloat16, [4, 64, 256], TILE)
    after_launches_before()
    slot = near_slots_of(pools, counts, place, 0)
    low_queries = load_queries(ends, place, 0)
    gl.thread_barrier()  # or the compiler puts loads off until others have come
    low = load_near(pools[0], 0, slot, NEAR)
    high_queries = load_queries(ends, place, 1)
    high = load_near(pools[0], 1, slot, NEAR)
    gl.thread_barrier()
    slots.index(0).store(slot)
    keep_queries(low_queries, queries.index(0))
    decode_near_half(low, shared, 0)
    keep_queries(high_queries, queries.index(1))
    decode_near_half(high, shared, 1)
    mine = gl.zeros([64, 256], gl.float32, layout=VALUES)
    theirs = gl.zeros([64, 256], gl.float32, layout=VALUES)
    for tile in range(NUM_TILES - 1):
        mbarrier.wait(scaled.index(tile % 2), tile // 2 & 1)
        factor = sums.index(tile % 2).load(gl.SliceLayout(1, VALUES))[:, None]
        mine, theirs = mine * factor, theirs * factor
        mbarrier.wait(known.index(tile % 2), tile // 2 & 1)
        base = hidden(tile % 2)
        own, other = halves.index(base * 2 + split), halves.index(base * 2 + 1 - split)
        mine = warpgroup_mma(weights.index(base), own, mine, is_async=True)
        theirs = warpgroup_mma(weights.index(base), other, theirs, is_async=True)
        mine, theirs = warpgroup_mma_wait(0, deps=(mine, theirs))
        gl.thread_barrier()
        mbarrier.arrive(empty.index(tile % 2), count=1)
    # what the other program waits for is multiplied first and on its way while the rest is
    last: gl.constexpr = (NUM_TILES - 1) % 2
    mbarrier.wait(scaled.index(last), (NUM_TILES - 1) // 2 & 1)
    factor = sums.index(last).load(gl.SliceLayout(1, VALUES))[:, None]
    mine, theirs = mine * factor, theirs * factor
    mbarrier.wait(known.index(last), (NUM_TILES - 1) // 2 & 1)
    own, other = halves.index(last * 2 + split), halves.index(last * 2 + 1 - split)
    theirs = warpgroup_mma(weights.index(last), other, theirs, is_async=True)
    mine = warpgroup_mma(weights.index(last), own, mine, is_async=True)
    theirs = warpgroup_mma_wait(1, deps=(theirs,))
    leave_values(theirs, done, ends, place)
    mine = warpgroup_mma_wait(0, deps=(mine,))
    finish(mine, sums, ends, place)


@warp_kernel
def _attend_kernel(
    q: Block,
    near: Block,
    near_slots: Block,
    far: Block,
    far_pairs: Block,
    far_slots: Block,
    sink: Block,
    out: Block,
    partials: Block,
    states: Block,
    scale: Block,
    num_near: Block,
    num_far: Block,
    num_heads: Block,
    NEAR: gl.constexpr,
    FAR: gl.constexpr,
    NEAR_TILES: gl.constexpr,
    FAR_TILES: gl.constexpr,
    SCORING: gl.constexpr,
    DECODING: gl.constexpr,
) -> None:
    """NEAR_TILES, FAR_TILES: of each program."""
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], TILE)
    tiles = gl.allocate_shared_memory(gl.int32, [2, 64, 256], TILE_WORDS)
    slots = gl.allocate_shared_memory(gl.int32, [4, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    weights = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], TILE)
    sums = gl.allocate_shared_memory(gl.float32, [4, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    scaled = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    known = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(2 * i), count=1)
        mbarrier.init(full.index(2 * i + 1), count=1)
        mbarrier.init(scaled.index(i), count=1)
        mbarrier.init(known.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(done, count=1)
    fence_async_shared()
    next_may_begin()
    place = (gl.program_id(1).to(gl.int64), gl.program_id(0) // SPLITS * 64, gl.program_id(0) % SPLITS)
    pools, counts = (near, near_slots, far, far_pairs, far_slots), (num_near, num_far)
    ends = (q, sink, out, partials, states, num_heads)
    shared = (queries, tiles, slots, weights, sums, full, scaled, known, empty, done)
    gl.warp_specialize(
        [
            (_add, (ends, pools, counts, place, shared, NEAR, NEAR_TILES + FAR_TILES)),
            (score, (ends, place, shared, scale, NEAR_TILES + FAR_TILES)),
            (decode, (pools, counts, place, shared, NEAR, FAR, NEAR_TILES, FAR_TILES)),
        ],
        [4, 8],
        [SCORING, DECODING],
    )


def attend(
    q: torch.Tensor,
    window: BoundRecords,
    window_slots: torch.Tensor,
    main: BoundRecords,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """As ``packed_attention.attend``, of 512 channels.

    Args:
        workspace: scratch of the stream; without it, a call brings its own.

    Raises:
        ValueError: another width, or a workspace without room for one row.
    """
    num_rows, num_heads, width = q.shape
    if width != WIDTH:
        raise ValueError("attend: this kernel has 512 channels")
    out, far = torch.empty_like(q), words_of(main)
    parts = 2 * ceil_div(num_heads, 64)
    if workspace is None:
        rows = min(num_rows, _ROWS)
        workspace = Workspace.on(q.device, rows * parts * PARTIAL.value, rows * parts * WARPS.value)
    step = min(
        workspace.partials.numel() // (parts * PARTIAL.value),
        len(workspace.counters) // (parts * WARPS.value),
    )
    if step == 0:
        raise ValueError("attend: the workspace has no room for the sums of one row")
    constants: dict[str, Any] = {
        "NEAR": words_of_record(window),
        "FAR": words_of_record(main),
        "NEAR_TILES": max(1, ceil_div(window_slots.shape[1], SPLITS.value * SLOTS.value)),
        "FAR_TILES": ceil_div(main_slots.shape[1], SPLITS.value * SLOTS.value),
        **dict(zip(("SCORING", "DECODING"), _REGISTERS, strict=True)),
    }
    scale = 2.0**32 * width**-0.5 * 1.4426950408889634
    for low in range(0, num_rows, step):
        part = slice(low, min(low + step, num_rows))
        warp_launch(
            _attend_kernel,
            (SPLITS.value * ceil_div(num_heads, 64), part.stop - low),
            *(q[part], words_of(window), window_slots[part]),
            *(far, far.view(torch.int16), main_slots[part], sink, out[part]),
            *(workspace.partials, workspace.counters, scale),
            *(window_slots.shape[1], main_slots.shape[1], num_heads),
            num_warps=8,
            early=True,
            **constants,
        )
    return out
