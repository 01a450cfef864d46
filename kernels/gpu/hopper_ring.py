"""Where tiles of packed keys are while the index scan of Hopper chips needs them: all in shared memory.

A unit is eight entries in a row. A table holds where each unit's codes begin, so that asking for a tile takes
one load of a word and one copy a thread; another one holds the entries' powers of two as they are multiplied.
Codes arrive in places of their own, four tiles deep.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from deepinfer.kernels.gpu.hopper_keys import CODES, ENTRIES, SCORES
from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device

TILES: gl.constexpr = gl.constexpr(32)
"""Of a program, at most."""
UNIT: gl.constexpr = gl.constexpr(8)
UNITS: gl.constexpr = gl.constexpr(TILES.value * ENTRIES.value // UNIT.value)
OWN: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [64, 0], [128, 0]],
        [[0, 4], [1, 0], [2, 0], [4, 0], [8, 0]],
        [[16, 0], [32, 0]],
        [],
        [256, 8],
    )
)
"""[units, entries]: four entries in a row."""
LAST: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [16, 0]],
        [[0, 16], [0, 32], [0, 64], [1, 0], [2, 0]],
        [[4, 0], [8, 0]],
        [],
        [32, 128],
    )
)
"""[tiles, two sums of each entry]: two units a thread."""
_COPY: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [32, 0]],
        [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0]],
        [],
        [64, 16],
    )
)
"""Words of a tile: four in a row."""
_COPY_UNITS: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[4, 0]], [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]], [[1, 0], [2, 0]], [], [8, 8]
    )
)
"""Units and entries of a tile as ``_COPY`` has its rows."""
_WORDS: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8]],
        [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, 16],
    )
)
"""Words of a tile as the matrix unit takes them."""
_POWERS: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [8, 0]], [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 2]
    )
)
"""Two words of powers an entry, as ``SCORES`` has its rows."""
RING: gl.constexpr = gl.constexpr(gl.SwizzledSharedLayout(4, 2, 4, [1, 0]))
PLAIN: gl.constexpr = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
FLAT: gl.constexpr = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@warp_device
def ask(place: Block, data: Block, units: Block, tile: Block, LAYOUT: gl.constexpr) -> None:
    """Have the codes of a tile copied to its place."""
    unit = units.index(tile).load(gl.SliceLayout(1, _COPY_UNITS))
    rows = unit[:, None].broadcast_to([8, 8]).reshape([64])
    rows = gl.convert_layout(rows, gl.SliceLayout(1, _COPY)).to(gl.int64) * LAYOUT[6]
    r = gl.arange(0, ENTRIES, layout=gl.SliceLayout(1, _COPY))
    word = gl.arange(0, 16, layout=gl.SliceLayout(0, _COPY))
    lane = data + ((r & 7) * LAYOUT[2])[:, None] + word[None, :]
    async_copy.async_copy_global_to_shared(place, lane + rows[:, None])
    async_copy.commit_group()


@warp_device
def codes_at(place: Block) -> tuple[Block, Block, Block, Block]:
    """Words of the four groups of channels of every entry of a tile, [64, 4]."""
    words = place.load(_WORDS).reshape([64, 2, 2, 4]).permute([0, 3, 1, 2])
    evens, odds = gl.split(words)
    c0, c2 = gl.split(evens)
    c1, c3 = gl.split(odds)
    c0, c1 = gl.convert_layout(c0, CODES), gl.convert_layout(c1, CODES)
    return c0, c1, gl.convert_layout(c2, CODES), gl.convert_layout(c3, CODES)


@warp_device
def store_powers(words: Block, powers: Block) -> None:
    """Powers of two of four e8m0 bytes, int32 ``words`` [units, 8], as bfloat16: two words an entry."""
    low, high = gl.inline_asm_elementwise(
        """{
        .reg .b32 a;
        prmt.b32 a, $2, 0, 0x4140; shl.b32 $0, a, 7;
        prmt.b32 a, $2, 0, 0x4342; shl.b32 $1, a, 7;
        }""",
        "=r,=r,r",
        [words],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    both = gl.join(low, high).reshape([UNITS * UNIT, 2])
    powers._reinterpret(gl.int32, [UNITS * UNIT, 2], PLAIN).store(both)


@warp_device
def powers_of(powers: Block, tile: Block) -> tuple[Block, Block, Block, Block]:
    """Powers of two of the groups of a tile's entries, float32 [64, 32] each, for all heads."""
    low, high = gl.split(powers.index(tile).load(_POWERS))
    low = gl.convert_layout(low, gl.SliceLayout(1, SCORES))[:, None].broadcast_to([64, 32])
    high = gl.convert_layout(high, gl.SliceLayout(1, SCORES))[:, None].broadcast_to([64, 32])
    p0, p1 = (low << 16).to(gl.float32, bitcast=True), (low & -65536).to(gl.float32, bitcast=True)
    p2, p3 = (high << 16).to(gl.float32, bitcast=True), (high & -65536).to(gl.float32, bitcast=True)
    return p0, p1, p2, p3
