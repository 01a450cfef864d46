"""The groups of the Hopper attention kernel that decode records and that weigh them.

Legend: C = 512 channels, tiles of 64 slots, 64 heads.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gpu.hopper_rows import LOWEST, SCORES, hidden
from deepinfer.kernels.gpu.hopper_tiles import (
    SLOTS,
    TILE,
    TILE_WORDS,
    ask_far,
    decode_far,
    decode_near,
    load_far,
    load_near,
    slot_of,
)
from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import after_launches_before, warp_device

SPLITS: gl.constexpr = gl.constexpr(2)
"""Programs of a row: even tiles are one's, odd ones the other's."""


@warp_device
def filled(barrier: Block) -> None:
    """What the group has written is complete, also for the matrix unit."""
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(barrier, count=1)


@warp_device
def decode(
    pools: Block,
    counts: Block,
    place: Block,
    shared: Block,
    NEAR: gl.constexpr,
    FAR: gl.constexpr,
    NEAR_TILES: gl.constexpr,
    FAR_TILES: gl.constexpr,
) -> None:
    """Decode the program's tiles, in order, into two buffers in turn; loads run ahead by half a tile, and the
    second cache is asked for records by another half. A slot past the end is -1, which loads nothing.
    """
    near, near_bytes, near_slots, far, far_pairs, far_slots = pools
    num_near, num_far = counts
    row, _, split = place
    _, tiles, _, _, full, _, empty, _, _ = shared
    halves = tiles._reinterpret(gl.int32, [4, 64, 128], TILE_WORDS)
    after_launches_before()
    slot = slot_of(near_slots, row, num_near, split)
    far_slot = slot_of(far_slots, row, num_far, split)
    next_slot = slot_of(far_slots, row, num_far, SPLITS + split)
    ask_far(far, far_slot, FAR)
    for one in gl.static_range(NEAR_TILES):
        mbarrier.wait(empty.index(one % 2), (one // 2 & 1) ^ 1)
        c0, s0 = load_near(near, near_bytes, slot, NEAR)
        c1, s1 = load_near(near + 64, near_bytes + 8, slot, NEAR)
        slot = slot_of(near_slots, row, num_near, (one + 1) * SPLITS + split)
        decode_near(halves.index(one % 2 * 2), c0, s0)
        if one == NEAR_TILES - 1:
            codes, pairs = load_far(far, far_pairs, far_slot, FAR)
        filled(full.index(one % 2 * 2))
        decode_near(halves.index(one % 2 * 2 + 1), c1, s1)
        filled(full.index(one % 2 * 2 + 1))
    for number in range(2 * FAR_TILES):
        tile, half = number // 2 + NEAR_TILES, number % 2
        far_slot = gl.where(half == 0, far_slot, next_slot)
        mbarrier.wait(empty.index(tile % 2), (tile // 2 & 1) ^ 1)
        ask_far(far, gl.where(half == 0, next_slot, -1), FAR)
        # whoever waits for one load waits for all: these are sent when those of this half have come
        other = 1 - half
        next_codes, next_pairs = load_far(far + other * 32, far_pairs + other * 8, far_slot, FAR)
        next_slot = slot_of(far_slots, row, num_far, (number + 3) // 2 * SPLITS + split)
        decode_far(halves.index(tile % 2 * 2 + half), codes, pairs)
        filled(full.index(tile % 2 * 2 + half))
        codes, pairs = next_codes, next_pairs


@warp_device
def score(
    pools: Block,
    counts: Block,
    place: Block,
    shared: Block,
    scale: Block,
    NEAR_TILES: gl.constexpr,
    FAR_TILES: gl.constexpr,
) -> None:
    """Weights of every tile against the largest score so far, and what this makes of earlier ones."""
    _, _, near_slots, _, _, far_slots = pools
    num_near, num_far = counts
    row, _, split = place
    queries, tiles, weights, sums, full, known, _, ready, done = shared
    largest = gl.full([64], LOWEST, gl.float32, layout=gl.SliceLayout(1, SCORES))
    total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, SCORES))
    zero = gl.zeros([64, 64], gl.float32, layout=SCORES)
    halves = tiles._reinterpret(gl.bfloat16, [4, 64, 256], TILE)
    one = gl.full([64, 64], 1.0, gl.float32, layout=SCORES)
    j = gl.arange(0, SLOTS, layout=gl.SliceLayout(0, SCORES))
    after_launches_before()
    mbarrier.wait(ready, 0)
    # a loop that is known to have one turn is none, and what is left of it the compiler does not lower
    for tile in range(NEAR_TILES + FAR_TILES + hidden(num_near * 0)):
        if tile < NEAR_TILES:
            at = (tile * SPLITS + split) * SLOTS + j
            slot = gl.load(near_slots + row * num_near + at, mask=at < num_near, other=-1)
        else:
            at = ((tile - NEAR_TILES) * SPLITS + split) * SLOTS + j
            slot = gl.load(far_slots + row * num_far + at, mask=at < num_far, other=-1)
        seen = (slot >= 0)[None, :]
        half, base = hidden(tile * 0), hidden(tile % 2 * 2)
        mbarrier.wait(full.index(tile % 2 * 2), tile // 2 & 1)
        low = halves.index(base).permute((1, 0))
        s = warpgroup_mma(queries.index(half), low, zero, use_acc=False, is_async=True)
        mbarrier.wait(full.index(tile % 2 * 2 + 1), tile // 2 & 1)
        high = halves.index(base + 1).permute((1, 0))
        s = warpgroup_mma(queries.index(half + 1), high, s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        s = gl.where(seen, s, float("-inf"))
        new = gl.maximum(largest, gl.max(s, axis=1) * scale)
        p = gl.exp2(gl.fma(s, one * scale, (-new)[:, None].broadcast_to([64, 64])))
        factor = gl.exp2(largest - new)
        total = total * factor + gl.sum(p, axis=1)
        largest = new
        # the buffers of two tiles ago are free: the tile itself could not be full otherwise
        weights.index(tile % 2).store(p.to(gl.bfloat16))
        sums.index(tile % 2).store(factor)
        filled(known.index(tile % 2))
    sums.index(2).store(total)
    sums.index(3).store(largest)
    gl.thread_barrier()
    mbarrier.arrive(done, count=1)
