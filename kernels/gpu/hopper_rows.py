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
VALUES: gl.constexpr = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16]))
LINES: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0]))
_VALUES_OF: gl.constexpr = gl.constexpr(64 * 256)
PARTIAL: gl.constexpr = gl.constexpr(64 * 256 + 128)
"""Numbers that a program leaves for the other one: values of half of the channels, sums, largest scores."""


@warp_device
def hidden(number: Block) -> Block:
    """``number``, in a way that the compiler does not see: addresses that hang on it are computed where they
    are used, not kept (and spilled) over a whole loop.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1
    )


@warp_device
def load_queries(q: Block, queries: Block, place: Block, num_heads: Block, ready: Block) -> None:
    """A row's queries to shared memory, in the order of tiles; past the last head, that one again."""
    row, head, _ = place
    h = gl.minimum(gl.arange(0, 64, layout=gl.SliceLayout(1, LINES)), num_heads - head - 1)
    c = gl.arange(0, CHANNELS, layout=gl.SliceLayout(0, LINES))
    line = q + (row * num_heads + head) * CHANNELS
    own = gl.load(line + (h * CHANNELS)[:, None] + c[None, :])
    whole = queries._reinterpret(gl.bfloat16, [64, 512], queries.layout)
    whole.store(own.reshape([64, 64, 2, 4]).permute([0, 1, 3, 2]).reshape([64, 512]))
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(ready, count=1)


@warp_device
def _lines(part: Block) -> Block:
    """Values [64, 256] as [16, 1024], four neighbours a thread: a warp writes whole lines."""
    part = part.reshape([4, 2, 8, 2, 16, 4, 2]).permute([4, 0, 3, 2, 5, 1, 6])
    return part.reshape([16, 1024])


@warp_device
def _values(lines: Block) -> Block:
    """The reverse of ``_lines``."""
    return lines.reshape([16, 4, 2, 8, 4, 2, 2]).permute([1, 5, 3, 2, 0, 4, 6]).reshape([64, 256])


@warp_device
def _places(lines: Block) -> Block:
    """Where the numbers of ``_lines`` lie."""
    i = gl.arange(0, 16, layout=gl.SliceLayout(1, lines.type.layout))
    j = gl.arange(0, 1024, layout=gl.SliceLayout(0, lines.type.layout))
    return i[:, None] * 1024 + j[None, :]


@warp_device
def _announce(flag: Block) -> None:
    """Set ``flag`` to 1 after everything that the program's first warps wrote before their barrier."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .b32 t;
        mov.u32 t, %tid.x;
        setp.eq.b32 p, t, 0;
        mov.b32 $0, 1;
        @p st.release.gpu.global.b32 [$1], $0;
        }""",
        "=r,l",
        [flag],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@warp_device
def _await(flag: Block) -> None:
    """Until ``flag`` is not 0; what its writer wrote before is seen by each thread afterwards."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred p;
        again:
        ld.relaxed.gpu.global.b32 $0, [$1];
        setp.eq.b32 p, $0, 0;
        @p bra again;
        ld.acquire.gpu.global.b32 $0, [$1];
        }""",
        "=r,l",
        [flag],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@warp_device
def exchange(
    mine: Block, theirs: Block, sums: Block, done: Block, ends: Block, place: Block, page: Block
) -> None:
    """Finish half of the channels with what the other program has of them, and leave it the other half.

    Both programs run this at the same time and wait for each other, so both have to be there: they are
    neighbours in the order in which a launch begins its programs, so at most one of all that run can lack its
    partner, and the others end and make room. Every sum has two terms, or two and then the sink, so it does
    not matter whose come first. ``page`` bfloat16 [64, 256] in shared memory is scratch.
    """
    _, sink, out, partials, states, num_heads = ends
    row, head, split = place
    number = (row * ((num_heads + 63) // 64) + head // 64) * 2
    theirs = _lines(theirs)
    h = gl.arange(0, 64, layout=gl.SliceLayout(1, VALUES))
    places = _places(theirs)
    left = partials + (number + split) * PARTIAL
    gl.store(left + places, theirs)
    mbarrier.wait(done, 0)
    total = sums.index(2).load(gl.SliceLayout(1, VALUES))
    largest = sums.index(3).load(gl.SliceLayout(1, VALUES))
    gl.store(left + _VALUES_OF + h, total)
    gl.store(left + _VALUES_OF + 64 + h, largest)
    gl.thread_barrier()
    _announce(states + number + split)

    raw = gl.load(sink + head + h, mask=head + h < num_heads, other=0.0) * _LOG2_E
    flag, left = states + number + (1 - split), partials + (number + 1 - split) * PARTIAL
    _await(flag)
    theirs = gl.convert_layout(_values(gl.load(left + places, cache_modifier=".cg")), mine.type.layout)
    other_total = gl.load(left + _VALUES_OF + h, cache_modifier=".cg")
    other_largest = gl.load(left + _VALUES_OF + 64 + h, cache_modifier=".cg")
    top = gl.maximum(largest, other_largest)
    own, other = gl.exp2(largest - top), gl.exp2(other_largest - top)
    den = total * own + other_total * other + gl.exp2(raw - top)
    share = gl.where(top > LOWEST, _LIFT / den, 0.0)
    lines: gl.constexpr = gl.SliceLayout(1, mine.type.layout)
    own = gl.convert_layout(own * share, lines)[:, None]
    other = gl.convert_layout(other * share, lines)[:, None]
    page.store((mine * own + theirs * other).to(gl.bfloat16))
    gl.thread_barrier()
    gl.store(flag, 0)
    value = page.load(LINES).reshape([64, 32, 4, 2]).permute([0, 1, 3, 2]).reshape([64, 256])
    h = gl.arange(0, 64, layout=gl.SliceLayout(1, LINES))
    c = gl.arange(0, _HALF, layout=gl.SliceLayout(0, LINES))
    line = out + ((row * num_heads + head) * CHANNELS + split * _HALF)
    at = line + (h * CHANNELS)[:, None] + c[None, :]
    gl.store(at, gl.convert_layout(value, LINES), mask=(h < num_heads - head)[:, None])
