"""What the groups of the Hopper attention kernel that add values do first and last: fetch queries, add up.

Legend: H heads, C = 512 channels.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

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
_WRITTEN: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0], [0, 128]],
        [],
        [64, 256],
    )
)
"""Sixteen bytes of a row a thread, of values that the same warp has in ``VALUES``."""
_VALUES_OF: gl.constexpr = gl.constexpr(64 * 256)
WARPS: gl.constexpr = gl.constexpr(8)
"""Of the group that adds values."""
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
def load_queries(ends: Block, place: Block, half: Block) -> Block:
    """Half of a row's queries [64, 256]; past the last head, that one again."""
    q, _, _, _, _, num_heads = ends
    row, head, _ = place
    h = gl.minimum(gl.arange(0, 64, layout=gl.SliceLayout(1, LINES)), num_heads - head - 1)
    c = gl.arange(0, _HALF, layout=gl.SliceLayout(0, LINES))
    line = q + ((row * num_heads + head) * CHANNELS + half * _HALF)
    return gl.load(line + (h * CHANNELS)[:, None] + c[None, :])


@warp_device
def keep_queries(own: Block, half: Block) -> None:
    """Queries to shared memory [64, 256], in the order of tiles."""
    half.store(own.reshape([64, 32, 2, 4]).permute([0, 1, 3, 2]).reshape([64, 256]))


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
def _announce(flags: Block) -> None:
    """Set a warp's flag to 1 after everything that its threads wrote, and what they know to be written."""
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .b32 t; .reg .b64 at;
        mov.u32 t, %tid.x;
        shr.u32 t, t, 5;
        mul.wide.u32 at, t, 4;
        add.u64 at, at, $1;
        mov.u32 t, %laneid;
        setp.eq.b32 p, t, 0;
        mov.b32 $0, 1;
        bar.warp.sync 0xffffffff;
        @p st.release.gpu.global.b32 [at], $0;
        }""",
        "=r,l",
        [flags],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@warp_device
def _await(flags: Block) -> None:
    """Until a warp's flag is not 0, which it is again afterwards; what the flag's writer wrote before is
    seen by each thread.
    """
    gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .b32 t; .reg .b64 at;
        mov.u32 t, %tid.x;
        shr.u32 t, t, 5;
        mul.wide.u32 at, t, 4;
        add.u64 at, at, $1;
        again:
        ld.relaxed.gpu.global.b32 $0, [at];
        setp.eq.b32 p, $0, 0;
        @p bra again;
        ld.acquire.gpu.global.b32 $0, [at];
        mov.u32 t, %laneid;
        setp.eq.b32 p, t, 0;
        bar.warp.sync 0xffffffff;
        @p st.relaxed.gpu.global.b32 [at], 0;
        }""",
        "=r,l",
        [flags],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@warp_device
def _left(ends: Block, place: Block) -> Block:
    """Number of the row's first program."""
    row, head, _ = place
    return (row * ((ends[5] + 63) // 64) + head // 64) * 2


@warp_device
def leave_weights(total: Block, largest: Block, ends: Block, place: Block) -> None:
    """A program's sum and largest score of each head for the other program; ``leave_values`` announces
    them.
    """
    h = gl.arange(0, 64, layout=total.type.layout)
    left = ends[3] + (_left(ends, place) + place[2]) * PARTIAL + _VALUES_OF
    gl.store(left + h, total)
    gl.store(left + 64 + h, largest)


@warp_device
def leave_values(theirs: Block, done: Block, ends: Block, place: Block) -> None:
    """Leave the other program its half of the channels, warp for warp.

    A warp of the other program needs what the same warp has here, so each has a flag of its own.
    """
    number = _left(ends, place) + place[2]
    theirs = _lines(theirs)
    gl.store(ends[3] + number * PARTIAL + _places(theirs), theirs)
    mbarrier.wait(done, 0)
    _announce(ends[4] + number * WARPS)


@warp_device
def finish(mine: Block, sums: Block, ends: Block, place: Block) -> None:
    """Finish half of the channels with what the other program has of them.

    Both programs run this at the same time and wait for each other, so both have to be there: they are
    neighbours in the order in which a launch begins its programs, so at most one of all that run can lack its
    partner, and the others end and make room. Every sum has two terms, or two and then the sink, so it does
    not matter whose come first.
    """
    _, sink, out, partials, states, num_heads = ends
    row, head, split = place
    number = _left(ends, place) + 1 - split
    h = gl.arange(0, 64, layout=gl.SliceLayout(1, VALUES))
    total = sums.index(2).load(gl.SliceLayout(1, VALUES))
    largest = sums.index(3).load(gl.SliceLayout(1, VALUES))
    raw = gl.load(sink + head + h, mask=head + h < num_heads, other=0.0) * _LOG2_E
    left = partials + number * PARTIAL
    _await(states + number * WARPS)
    theirs = gl.load(left + _places(_lines(mine)), cache_modifier=".cg")
    theirs = gl.convert_layout(_values(theirs), mine.type.layout)
    other_total = gl.load(left + _VALUES_OF + h, cache_modifier=".cg")
    other_largest = gl.load(left + _VALUES_OF + 64 + h, cache_modifier=".cg")
    top = gl.maximum(largest, other_largest)
    own, other = gl.exp2(largest - top), gl.exp2(other_largest - top)
    den = total * own + other_total * other + gl.exp2(raw - top)
    share = gl.where(top > LOWEST, _LIFT / den, 0.0)
    own, other = (own * share)[:, None], (other * share)[:, None]
    value = gl.convert_layout((mine * own + theirs * other).to(gl.bfloat16), _WRITTEN)
    value = value.reshape([64, 32, 4, 2]).permute([0, 1, 3, 2]).reshape([64, 256])
    h = gl.arange(0, 64, layout=gl.SliceLayout(1, _WRITTEN))
    c = gl.arange(0, _HALF, layout=gl.SliceLayout(0, _WRITTEN))
    line = out + ((row * num_heads + head) * CHANNELS + split * _HALF)
    at = line + (h * CHANNELS)[:, None] + c[None, :]
    gl.store(at, gl.convert_layout(value, _WRITTEN), mask=(h < num_heads - head)[:, None])
