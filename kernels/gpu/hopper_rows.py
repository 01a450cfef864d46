"""What the groups of the Hopper attention kernel that add values do first and last: fetch queries, add up.

Legend: H heads, C = 512 channels.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device

CHANNELS: gl.constexpr = gl.constexpr(512)
_HALF: gl.constexpr = gl.constexpr(256)
LOWEST: gl.constexpr = gl.constexpr(-3.0e38)
_LOG2_E: gl.constexpr = gl.constexpr(1.4426950408889634)
_LIFT: gl.constexpr = gl.constexpr(2.0**32)
SCORES: gl.constexpr = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
VALUES: gl.constexpr = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
LINES: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))
_VALUES_OF: gl.constexpr = gl.constexpr(64 * 256)
PARTIAL: gl.constexpr = gl.constexpr(64 * 256 + 128)
"""Numbers that a program leaves for the other one: values of half of the channels, sums, largest scores."""
_READY: gl.constexpr = gl.constexpr(1 << 16)
"""A row's state counts programs that have begun; this much is added when the first has left its part."""


@warp_device
def hidden(number: Block) -> Block:
    """``number``, in a way that the compiler does not see: addresses that hang on it are computed where they
    are used, not kept (and spilled) over a whole loop.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1
    )


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
def claim(state: Block) -> Block:
    """Whether this program is the first of the two that share a row's ``state``."""
    return gl.atomic_add(state, 1, sem="relaxed", scope="gpu") % _READY == 0


@warp_device
def _quarters(acc: Block) -> tuple[Block, Block, Block, Block]:
    """Values [64, 256] as four times [64, 64]."""
    low, high = gl.split(acc.reshape([64, 2, 128]).permute([0, 2, 1]))
    a, b = gl.split(low.reshape([64, 2, 64]).permute([0, 2, 1]))
    c, d = gl.split(high.reshape([64, 2, 64]).permute([0, 2, 1]))
    return a, b, c, d


@warp_device
def _places(part: Block) -> Block:
    """Where a quarter lies in lines of 256 floats."""
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, part.type.layout))
    c = gl.arange(0, 64, layout=gl.SliceLayout(0, part.type.layout))
    return r[:, None] * 256 + c[None, :]


@warp_device
def leave(acc: Block, total: Block, largest: Block, own: Block, state: Block) -> None:
    """Write what this program has, and say so."""
    h = gl.arange(0, 64, layout=gl.SliceLayout(1, VALUES))
    gl.store(own + _VALUES_OF + h, total)
    gl.store(own + _VALUES_OF + 64 + h, largest)
    parts = _quarters(acc)
    for i in gl.static_range(4):
        gl.store(own + _places(parts[i]) + 64 * i, parts[i])
    gl.thread_barrier()
    gl.atomic_add(state, _READY, sem="acq_rel", scope="gpu")


@warp_device
def _sum(part: Block, left: Block, mine: Block, other: Block) -> Block:
    """A quarter of the result, bfloat16."""
    lines: gl.constexpr = gl.SliceLayout(1, part.type.layout)
    theirs = gl.load(left + _places(part), cache_modifier=".cg")
    mine, other = gl.convert_layout(mine, lines)[:, None], gl.convert_layout(other, lines)[:, None]
    return (part * mine + theirs * other).to(gl.bfloat16)


@warp_device
def add_up(
    acc: Block,
    total: Block,
    largest: Block,
    own: Block,
    state: Block,
    sink: Block,
    out: Block,
    place: Block,
    num_heads: Block,
    page: Block,
    WHICH: gl.constexpr,
) -> None:
    """Wait for what the first program leaves, add, divide and store 256 channels; ``page`` is scratch.

    Every sum has two terms, or two and then the sink, so it does not matter whose come first.
    """
    row, head, _ = place
    h = gl.arange(0, 64, layout=gl.SliceLayout(1, VALUES))
    raw = gl.load(sink + head + h, mask=head + h < num_heads, other=0.0) * _LOG2_E
    while gl.atomic_add(state, 0, sem="acq_rel", scope="gpu") < _READY:
        pass
    other_total = gl.load(own + _VALUES_OF + h, cache_modifier=".cg")
    other_largest = gl.load(own + _VALUES_OF + 64 + h, cache_modifier=".cg")
    top = gl.maximum(largest, other_largest)
    mine, other = gl.exp2(largest - top), gl.exp2(other_largest - top)
    den = total * mine + other_total * other + gl.exp2(raw - top)
    share = gl.where(top > LOWEST, _LIFT / den, 0.0)
    mine, other = mine * share, other * share
    parts = _quarters(acc)
    for i in gl.static_range(4):
        page.slice(64 * i, 64, dim=1).store(_sum(parts[i], own + 64 * i, mine, other))
    gl.thread_barrier()
    gl.store(state, 0)
    value = page.load(LINES).reshape([64, 32, 4, 2]).permute([0, 1, 3, 2]).reshape([64, 256])
    h = head + hidden(WHICH) - WHICH + gl.arange(0, 64, layout=gl.SliceLayout(1, LINES))
    c = WHICH * _HALF + gl.arange(0, 256, layout=gl.SliceLayout(0, LINES))
    at = (row * num_heads + h)[:, None] * CHANNELS + c[None, :]
    gl.store(out + at, gl.convert_layout(value, LINES), mask=(h < num_heads)[:, None])
