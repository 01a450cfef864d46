"""What the two multiplying groups of the Hopper attention kernel do first and last: fetch queries, add up.

Legend: H heads, C = 512 channels.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.gpu.hopper_tiles import TILE, TILE_WORDS
from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device

CHANNELS: gl.constexpr = gl.constexpr(512)
_HALF: gl.constexpr = gl.constexpr(256)
LOWEST: gl.constexpr = gl.constexpr(-3.0e38)
_LOG2_E: gl.constexpr = gl.constexpr(1.4426950408889634)
_LIFT: gl.constexpr = gl.constexpr(2.0**32)
SCORES: gl.constexpr = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
VALUES: gl.constexpr = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
LINES: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))
HALF_LINES: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))


@warp_device
def load_queries(
    q: Block, queries: Block, place: Block, num_heads: Block, ready: Block, WHICH: gl.constexpr
) -> None:
    """Half the channels of a row's queries to shared memory, in the order of tiles; wait for the rest."""
    row, head, _ = place
    h = head + gl.arange(0, 64, layout=gl.SliceLayout(1, LINES))
    c = gl.arange(0, 256, layout=gl.SliceLayout(0, LINES))
    at = (row * num_heads + h)[:, None] * CHANNELS + (WHICH * _HALF + c)[None, :]
    own = gl.load(q + at, mask=(h < num_heads)[:, None], other=0.0)
    queries.index(WHICH).store(own.reshape([64, 32, 2, 4]).permute([0, 1, 3, 2]).reshape([64, 256]))
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(ready, count=1)
    mbarrier.wait(ready, 0)


@warp_device
def finish(
    acc: Block,
    total: Block,
    largest: Block,
    sink: Block,
    out: Block,
    place: Block,
    num_heads: Block,
    tiles: Block,
    sums: Block,
    done: Block,
    WHICH: gl.constexpr,
) -> None:
    """Exchange quarters with the other group, add, divide and store 128 of the half's 256 channels."""
    row, head, half = place
    left, right = gl.split(acc.reshape([64, 2, 128]).permute([0, 2, 1]))
    if WHICH == 0:
        keep, give = left, right
    else:
        keep, give = right, left
    tiles.index(2 * WHICH)._reinterpret(gl.float32, [64, 128], TILE_WORDS).store(give)
    sums.index(2 * WHICH).store(total)
    sums.index(2 * WHICH + 1).store(largest)
    gl.thread_barrier()
    mbarrier.arrive(done.index(WHICH), count=1)
    h = head + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
    raw = gl.load(sink + h, mask=h < num_heads, other=0.0) * _LOG2_E
    mbarrier.wait(done.index(1 - WHICH), 0)
    other_total = sums.index(2 * (1 - WHICH)).load(gl.SliceLayout(1, SCORES))
    other_largest = sums.index(2 * (1 - WHICH) + 1).load(gl.SliceLayout(1, SCORES))
    top = gl.maximum(largest, other_largest)
    mine, other = gl.exp2(largest - top), gl.exp2(other_largest - top)
    if WHICH == 0:
        den = total * mine + other_total * other
    else:
        den = other_total * other + total * mine
    den = den + gl.exp2(raw - top)
    share = gl.where(top > LOWEST, _LIFT / den, 0.0)
    mine = gl.convert_layout(mine * share, gl.SliceLayout(1, keep.type.layout))[:, None]
    other = gl.convert_layout(other * share, gl.SliceLayout(1, keep.type.layout))[:, None]
    theirs = (
        tiles.index(2 * (1 - WHICH))._reinterpret(gl.float32, [64, 128], TILE_WORDS).load(keep.type.layout)
    )
    page = tiles.index(2 * WHICH + 1)._reinterpret(gl.bfloat16, [64, 256], TILE).slice(0, 128, dim=1)
    page.store((keep * mine + theirs * other).to(gl.bfloat16))
    gl.thread_barrier()
    value = page.load(HALF_LINES).reshape([64, 16, 4, 2]).permute([0, 1, 3, 2]).reshape([64, 128])
    h = head + gl.arange(0, 64, layout=gl.SliceLayout(1, HALF_LINES))
    c = half * _HALF + WHICH * 128 + gl.arange(0, 128, layout=gl.SliceLayout(0, HALF_LINES))
    at = (row * num_heads + h)[:, None] * CHANNELS + c[None, :]
    gl.store(out + at, gl.convert_layout(value, HALF_LINES), mask=(h < num_heads)[:, None])
