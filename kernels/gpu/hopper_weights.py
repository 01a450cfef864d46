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
def filled(full: Block, tile: Block) -> None:
    """The tile is complete, also for the matrix unit."""
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(full.index(tile % 2), count=1)


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
    """Decode the program's tiles, in order, into two buffers in turn; loads run ahead by half a tile. A slot
    past the end is -1, which loads nothing.
    """
    near, near_bytes, near_slots, far, far_pairs, far_slots = pools
    num_near, num_far = counts
    row, _, split = place
    _, tiles, _, _, full, _, empty, _, _ = shared
    after_launches_before()
    slot = slot_of(near_slots, row, num_near, split)
    far_slot = slot_of(far_slots, row, num_far, split)
    for one in gl.static_range(NEAR_TILES):
        c0, s0 = load_near(near, near_bytes, slot, NEAR, 0)
        c1, s1 = load_near(near, near_bytes, slot, NEAR, 1)
        c2, s2 = load_near(near, near_bytes, slot, NEAR, 2)
        mbarrier.wait(empty.index(one % 2), (one // 2 & 1) ^ 1)
        decode_near(tiles, one % 2 * 2, c0, s0, 0)
        c3, s3 = load_near(near, near_bytes, slot, NEAR, 3)
        decode_near(tiles, one % 2 * 2, c1, s1, 1)
        slot = slot_of(near_slots, row, num_near, (one + 1) * SPLITS + split)
        if one == NEAR_TILES - 1:
            d0, p0 = load_far(far, far_pairs, far_slot, FAR)
        decode_near(tiles, one % 2 * 2, c2, s2, 2)
        decode_near(tiles, one % 2 * 2, c3, s3, 3)
        filled(full, one)
    d1, p1 = load_far(far + 32, far_pairs + 8, far_slot, FAR)
    far_slot = slot_of(far_slots, row, num_far, SPLITS + split)
    for number in range(FAR_TILES):
        tile = number + NEAR_TILES
        mbarrier.wait(empty.index(tile % 2), (tile // 2 & 1) ^ 1)
        decode_far(tiles.index(tile % 2 * 2), d0, p0)
        d0, p0 = load_far(far, far_pairs, far_slot, FAR)
        decode_far(tiles.index(tile % 2 * 2 + 1), d1, p1)
        filled(full, tile)
        d1, p1 = load_far(far + 32, far_pairs + 8, far_slot, FAR)
        far_slot = slot_of(far_slots, row, num_far, (number + 2) * SPLITS + split)


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
        mbarrier.wait(full.index(tile % 2), tile // 2 & 1)
        base = hidden(tile % 2 * 2)
        low = tiles.index(base)._reinterpret(gl.bfloat16, [64, 256], TILE)
        high = tiles.index(base + 1)._reinterpret(gl.bfloat16, [64, 256], TILE)
        half = hidden(tile * 0)
        s = warpgroup_mma(queries.index(half), low.permute((1, 0)), zero, use_acc=False, is_async=True)
        s = warpgroup_mma(queries.index(half + 1), high.permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        s = gl.where(seen, s * scale, LOWEST)
        new = gl.maximum(largest, gl.max(s, axis=1))
        p = gl.where(seen, gl.exp2(s - new[:, None]), 0.0)
        factor = gl.exp2(largest - new)
        total = total * factor + gl.sum(p, axis=1)
        largest = new
        # the buffers of two tiles ago are free: the tile itself could not be full otherwise
        weights.index(tile % 2).store(p.to(gl.bfloat16))
        sums.index(tile % 2).store(factor)
        filled(known, tile)
    sums.index(2).store(total)
    sums.index(3).store(largest)
    gl.thread_barrier()
    mbarrier.arrive(done, count=1)
