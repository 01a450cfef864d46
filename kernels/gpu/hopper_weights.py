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

from deepinfer.kernels.gpu.hopper_rows import LOWEST, SCORES, hidden, leave_weights
from deepinfer.kernels.gpu.hopper_tiles import (
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
def near_slots_of(pools: Block, counts: Block, place: Block, number: Block) -> Block:
    """Slots of a tile of the window."""
    row, _, split = place
    return slot_of(pools[1], row, counts[0], number * SPLITS + split)


@warp_device
def decode_near_half(loaded: Block, shared: Block, half: Block) -> None:
    """Half a tile of the window into its place, which has to be free."""
    _, tiles, _, _, _, full, _, _, _, _ = shared
    codes, scales = loaded
    decode_near(tiles._reinterpret(gl.int32, [4, 64, 128], TILE_WORDS).index(half), codes, scales)
    filled(full.index(half))


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
    """Decode the program's tiles but the first, in order, into two buffers in turn. A slot past the end is
    -1, which loads nothing.

    Loads run half a tile ahead, those of one half into the registers of the half before; the second cache is
    asked for the next tile. Who waits for one load may wait for all that count with it, and a copy of a
    register waits, too: so a turn is a whole tile, and the block that sends its loads is the one that uses
    them, or the compiler puts them off.
    """
    near, _, far, far_pairs, far_slots = pools
    num_far = counts[1]
    row, _, split = place
    _, tiles, slots, _, _, full, _, _, empty, _ = shared
    halves = tiles._reinterpret(gl.int32, [4, 64, 128], TILE_WORDS)
    after_launches_before()
    for number in gl.static_range(1, NEAR_TILES):
        near_slot = near_slots_of(pools, counts, place, number)
        mbarrier.wait(empty.index(number % 2), (number // 2 & 1) ^ 1)
        slots.index(number % 2).store(near_slot)
        for half in gl.static_range(2):
            loaded = load_near(near, half, near_slot, NEAR)
            decode_near_half(loaded, shared, number % 2 * 2 + half)
    slot = slot_of(far_slots, row, num_far, split)
    next_slot = slot_of(far_slots, row, num_far, SPLITS + split)
    codes, pairs = load_far(far, far_pairs, slot, FAR)
    for number in range(FAR_TILES):
        tile = number + NEAR_TILES
        base = tile % 2 * 2
        mbarrier.wait(empty.index(tile % 2), (tile // 2 & 1) ^ 1)
        more, more_pairs = load_far(far + 32, far_pairs + 8, slot, FAR)
        ask_far(far, next_slot, FAR)
        slots.index(tile % 2).store(slot)
        decode_far(halves.index(base), codes, pairs)
        filled(full.index(base))
        slot = next_slot
        next_slot = slot_of(far_slots, row, num_far, (number + 2) * SPLITS + split)
        codes, pairs = load_far(far, far_pairs, slot, FAR)
        decode_far(halves.index(base + 1), more, more_pairs)
        filled(full.index(base + 1))


@warp_device
def score(ends: Block, place: Block, shared: Block, scale: Block, NUM_TILES: gl.constexpr) -> None:
    """Weights of every tile against the largest score so far, and what this makes of earlier ones."""
    queries, tiles, slots, weights, sums, full, scaled, known, _, done = shared
    largest = gl.full([64], LOWEST, gl.float32, layout=gl.SliceLayout(1, SCORES))
    total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, SCORES))
    zero = gl.zeros([64, 64], gl.float32, layout=SCORES)
    halves = tiles._reinterpret(gl.bfloat16, [4, 64, 256], TILE)
    one = gl.full([64, 64], 1.0, gl.float32, layout=SCORES)
    after_launches_before()
    # a loop that is known to have one turn is none, and what is left of it the compiler does not lower
    for tile in range(NUM_TILES + hidden(ends[5] * 0)):
        half, base = hidden(tile * 0), hidden(tile % 2 * 2)
        mbarrier.wait(full.index(tile % 2 * 2), tile // 2 & 1)
        # read before the matrix unit keeps shared memory busy: the second wait, which is none, keeps it there
        lowest = gl.min(slots.index(tile % 2).load(gl.SliceLayout(0, SCORES)), axis=0)
        mbarrier.wait(full.index(tile % 2 * 2), tile // 2 & 1)
        own = halves.index(base).permute((1, 0))
        s = warpgroup_mma(queries.index(half), own, zero, use_acc=False, is_async=True)
        mbarrier.wait(full.index(tile % 2 * 2 + 1), tile // 2 & 1)
        other = halves.index(base + 1).permute((1, 0))
        s = warpgroup_mma(queries.index(half + 1), other, s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        if lowest < 0:
            slot = slots.index(tile % 2).load(gl.SliceLayout(0, SCORES))
            s = gl.where((slot >= 0)[None, :], s, float("-inf"))
        new = gl.maximum(largest, gl.max(s, axis=1) * scale)
        factor = gl.exp2(largest - new)
        sums.index(tile % 2).store(factor)
        gl.thread_barrier()
        mbarrier.arrive(scaled.index(tile % 2), count=1)
        p = gl.exp2(gl.fma(s, one * scale, (-new)[:, None].broadcast_to([64, 64])))
        total = total * factor + gl.sum(p, axis=1)
        largest = new
        # the buffers of two tiles ago are free: the tile itself could not be full otherwise
        weights.index(tile % 2).store(p.to(gl.bfloat16))
        filled(known.index(tile % 2))
    sums.index(2).store(total)
    sums.index(3).store(largest)
    leave_weights(total, largest, ends, place)
    gl.thread_barrier()
    mbarrier.arrive(done, count=1)
