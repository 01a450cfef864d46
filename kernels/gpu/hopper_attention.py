"""Sparse attention on packed caches for Hopper chips, profile fast: one launch, three groups of warps.

A program has one row, up to 64 heads and one half of the channels of the result. One warp group fetches
records and decodes them into shared memory, tiles of 64 slots, window first; the two others take tiles in
turn: scores against all channels, softmax so far, weighted values of their half. In the end they exchange
quarters of what they have and add, the first group's sums first. Which tile goes where follows from slot
numbers alone, so every value is one fixed sequence of operations, however many rows there are; the programs
of both halves compute the same weights.

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

from deepinfer.kernels.gpu.hopper_rows import LOWEST, SCORES, VALUES, finish, load_queries
from deepinfer.kernels.gpu.hopper_tiles import (
    FAR_WORDS,
    NEAR_WORDS,
    SLOTS,
    TILE,
    TILE_WORDS,
    decode_far,
    decode_near,
    load_far,
    load_near,
    slot_of,
)
from deepinfer.kernels.gpu.launching import Block, ceil_div
from deepinfer.kernels.gpu.packed_attention import bytes_of, words_of, words_of_record
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.warp_groups import warp_device, warp_kernel, warp_launch

WIDTH = 512
_REGISTERS = 192
"""Of a thread that multiplies; 120 are left for one that decodes. Neither needs more, and neither spills."""


@warp_device
def _await(empty: Block, tile: Block, STAGE: gl.constexpr) -> None:
    """One half of a tile's buffer may be written: that of the other program's channels is free (stage 0) when
    scores are known, the own one (stage 1) when values are added.
    """
    mbarrier.wait(empty.index(tile % 2 * 2 + STAGE), (tile // 2 & 1) ^ 1)


@warp_device
def _filled(full: Block, tile: Block) -> None:
    """The tile is complete, also for the matrix unit."""
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(full.index(tile % 2), count=1)


@warp_device
def _produce(
    pools: Block,
    counts: Block,
    place: Block,
    tiles: Block,
    full: Block,
    empty: Block,
    NEAR: gl.constexpr,
    FAR: gl.constexpr,
    NEAR_TILES: gl.constexpr,
    FAR_TILES: gl.constexpr,
) -> None:
    """Decode all tiles, in order, each into the buffer of the group that takes it; loads run ahead by half a
    tile. A slot past the end is -1, which loads nothing.
    """
    near, near_bytes, near_slots, far, far_pairs, far_slots = pools
    num_near, num_far = counts
    row, _, own = place
    other = 1 - own
    slot = slot_of(near_slots, row, num_near, 0, NEAR_WORDS)
    c0, s0 = load_near(near + 64 * other, near_bytes + 8 * other, slot, NEAR)
    c1, s1 = load_near(near + 64 * own, near_bytes + 8 * own, slot, NEAR)
    slot = slot_of(near_slots, row, num_near, 1, NEAR_WORDS)
    for tile in range(NEAR_TILES):
        _await(empty, tile, 0)
        decode_near(tiles.index(tile % 2 * 2 + other), c0, s0)
        c0, s0 = load_near(near + 64 * other, near_bytes + 8 * other, slot, NEAR)
        _await(empty, tile, 1)
        decode_near(tiles.index(tile % 2 * 2 + own), c1, s1)
        _filled(full, tile)
        c1, s1 = load_near(near + 64 * own, near_bytes + 8 * own, slot, NEAR)
        slot = slot_of(near_slots, row, num_near, tile + 2, NEAR_WORDS)
    far_slot = slot_of(far_slots, row, num_far, 0, FAR_WORDS)
    d0, p0 = load_far(far + 32 * other, far_pairs + 8 * other, far_slot, FAR)
    d1, p1 = load_far(far + 32 * own, far_pairs + 8 * own, far_slot, FAR)
    far_slot = slot_of(far_slots, row, num_far, 1, FAR_WORDS)
    for number in range(FAR_TILES):
        tile = number + NEAR_TILES
        _await(empty, tile, 0)
        decode_far(tiles.index(tile % 2 * 2 + other), d0, p0)
        d0, p0 = load_far(far + 32 * other, far_pairs + 8 * other, far_slot, FAR)
        _await(empty, tile, 1)
        decode_far(tiles.index(tile % 2 * 2 + own), d1, p1)
        _filled(full, tile)
        d1, p1 = load_far(far + 32 * own, far_pairs + 8 * own, far_slot, FAR)
        far_slot = slot_of(far_slots, row, num_far, number + 2, FAR_WORDS)


@warp_device
def _hidden(number: Block) -> Block:
    """``number``, in a way that the compiler does not see: addresses that hang on it are computed where they
    are used, not kept (and spilled) over a whole loop.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1
    )


@warp_device
def _consume(
    pools: Block,
    counts: Block,
    ends: Block,
    place: Block,
    shared: Block,
    FAR: gl.constexpr,
    NEAR_TILES: gl.constexpr,
    FAR_TILES: gl.constexpr,
    WHICH: gl.constexpr,
) -> None:
    """Tiles ``WHICH``, ``WHICH + 2`` ...: weighted values [64, 256], sums and largest scores [64]."""
    _, _, near_slots, _, _, far_slots = pools
    num_near, num_far = counts
    q, sink, out, num_heads, scale = ends
    queries, tiles, sums, full, empty, ready, done = shared
    row, _, half = place
    load_queries(q, queries, place, num_heads, ready, WHICH)
    largest = gl.full([64], LOWEST, gl.float32, layout=gl.SliceLayout(1, SCORES))
    total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, SCORES))
    acc = gl.zeros([64, 256], gl.float32, layout=VALUES)
    zero = gl.zeros([64, 64], gl.float32, layout=SCORES)
    j = gl.arange(0, SLOTS, layout=gl.SliceLayout(0, SCORES))
    turn = 0
    for tile in range(WHICH, NEAR_TILES + FAR_TILES, 2):
        if tile < NEAR_TILES:
            at = tile * SLOTS + j
            slot = gl.load(near_slots + row * num_near + at, mask=at < num_near, other=-1)
        else:
            at = (tile - NEAR_TILES) * SLOTS + j
            slot = gl.load(far_slots + row * num_far + at, mask=at < num_far, other=-1)
        seen = (slot >= 0)[None, :]
        mbarrier.wait(full.index(WHICH), turn & 1)
        base = _hidden(turn * 0)
        low = tiles.index(base + 2 * WHICH)._reinterpret(gl.bfloat16, [64, 256], TILE)
        high = tiles.index(base + 2 * WHICH + 1)._reinterpret(gl.bfloat16, [64, 256], TILE)
        s = warpgroup_mma(queries.index(base), low.permute((1, 0)), zero, use_acc=False, is_async=True)
        s = warpgroup_mma(queries.index(base + 1), high.permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        gl.thread_barrier()
        mbarrier.arrive(empty.index(2 * WHICH), count=1)
        s = gl.where(seen, s * scale, LOWEST)
        new = gl.maximum(largest, gl.max(s, axis=1))
        p = gl.where(seen, gl.exp2(s - new[:, None]), 0.0)
        factor = gl.exp2(largest - new)
        total = total * factor + gl.sum(p, axis=1)
        largest = new
        acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, VALUES))[:, None]
        weights = gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, VALUES, 2))
        values = tiles.index(base + 2 * WHICH + half)._reinterpret(gl.bfloat16, [64, 256], TILE)
        acc = warpgroup_mma(weights, values, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        gl.thread_barrier()
        mbarrier.arrive(empty.index(2 * WHICH + 1), count=1)
        turn += 1
    finish(acc, total, largest, sink, out, place, num_heads, tiles, sums, done, WHICH)


@warp_kernel
def _attend_kernel(
    q: Block,
    near: Block,
    near_bytes: Block,
    near_slots: Block,
    far: Block,
    far_pairs: Block,
    far_slots: Block,
    sink: Block,
    out: Block,
    scale: Block,
    num_near: Block,
    num_far: Block,
    num_heads: Block,
    NEAR: gl.constexpr,
    FAR: gl.constexpr,
    NEAR_TILES: gl.constexpr,
    FAR_TILES: gl.constexpr,
    REGISTERS: gl.constexpr,
) -> None:
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 256], TILE)
    tiles = gl.allocate_shared_memory(gl.int32, [4, 64, 128], TILE_WORDS)
    sums = gl.allocate_shared_memory(gl.float32, [4, 64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(2 * i), count=1)
        mbarrier.init(empty.index(2 * i + 1), count=1)
        mbarrier.init(done.index(i), count=1)
    mbarrier.init(ready, count=2)
    fence_async_shared()
    row = gl.program_id(1).to(gl.int64)
    place = (row, gl.program_id(0) // 2 * 64, gl.program_id(0) % 2)
    pools, counts = (near, near_bytes, near_slots, far, far_pairs, far_slots), (num_near, num_far)
    ends, shared = (q, sink, out, num_heads, scale), (queries, tiles, sums, full, empty, ready, done)
    gl.warp_specialize(
        [
            (_consume, (pools, counts, ends, place, shared, FAR, NEAR_TILES, FAR_TILES, 0)),
            (_consume, (pools, counts, ends, place, shared, FAR, NEAR_TILES, FAR_TILES, 1)),
            (
                _produce,
                (pools, counts, place, tiles, full, empty, NEAR, FAR, NEAR_TILES, FAR_TILES),
            ),
        ],
        [4, 4],
        [REGISTERS, 504 - 2 * REGISTERS],
    )


def attend(
    q: torch.Tensor,
    window: BoundRecords,
    window_slots: torch.Tensor,
    main: BoundRecords,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
) -> torch.Tensor:
    """As ``packed_attention.attend``, of 512 channels.

    Raises:
        ValueError: another width.
    """
    num_rows, num_heads, width = q.shape
    if width != WIDTH:
        raise ValueError("attend: this kernel has 512 channels")
    out, far = torch.empty_like(q), words_of(main)
    constants: dict[str, Any] = {
        "NEAR": words_of_record(window),
        "FAR": words_of_record(main),
        "NEAR_TILES": ceil_div(window_slots.shape[1], SLOTS.value),
        "FAR_TILES": max(1, ceil_div(main_slots.shape[1], SLOTS.value)),  # a tile of absent slots, if of none
        "REGISTERS": _REGISTERS,
    }
    scale = 2.0**32 * width**-0.5 * 1.4426950408889634
    warp_launch(
        _attend_kernel,
        (2 * ceil_div(num_heads, 64), num_rows),
        *(q, words_of(window), bytes_of(window), window_slots, far, far.view(torch.int16), main_slots),
        *(sink, out, scale, window_slots.shape[1], main_slots.shape[1], num_heads),
        num_warps=4,
        **constants,
    )
    return out
