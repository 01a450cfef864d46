"""Cache records to tiles in shared memory, for the attention kernel of Hopper chips.

A tile is 64 records of 512 channels in two halves, bfloat16, swizzled as the matrix unit reads it. Channels
lie in groups of eight as 0, 4, 1, 5, 2, 6, 3, 7: the order in which lanes of two come out of a word of codes.
Decoded values are 2**-32 of what the records say, as in ``lanes.py``.

The layouts say which thread holds what: eight rows side by side in a warp, 16 bytes of codes a thread, so
that loads fill their sectors and the stores of a warp hit all banks.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl

from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device

SLOTS: gl.constexpr = gl.constexpr(64)

FAR_WORDS: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 16]],
        [[1, 0], [2, 0], [4, 0], [0, 4], [0, 8]],
        [[8, 0], [16, 0], [32, 0]],
        [],
        [64, 32],
    )
)
FAR_PAIRS: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 4]], [[1, 0], [2, 0], [4, 0], [0, 1], [0, 2]], [[8, 0], [16, 0], [32, 0]], [], [64, 8]
    )
)
NEAR_WORDS: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 16], [0, 32]],
        [[1, 0], [2, 0], [4, 0], [0, 4], [0, 8]],
        [[8, 0], [16, 0], [32, 0]],
        [],
        [64, 64],
    )
)
_ASKING: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [], [[1, 0], [2, 0], [4, 0], [0, 1], [0, 2]], [[8, 0], [16, 0], [32, 0]], [], [64, 4]
    )
)
TILE: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 16))
TILE_WORDS: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 32))


@warp_device
def _far_codes(words: Block, factors: Block) -> Block:
    """Eight codes of FP4 words and a factor of two lanes: four words of two bfloat16, (0, 4), (1, 5) ..."""
    d0, d1, d2, d3 = gl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, z;
        mov.b32 z, 0x80008000;
        and.b32 a, $4, 0x000F000F; mul.lo.u32 a, a, 0x1040; and.b32 a, a, 0x81C081C0;
        fma.rn.bf16x2 $0, a, $5, z;
        and.b32 a, $4, 0x00F000F0; mul.lo.u32 a, a, 0x0104; and.b32 a, a, 0x81C081C0;
        fma.rn.bf16x2 $1, a, $5, z;
        shl.b32 a, $4, 4; and.b32 a, a, z; shr.u32 b, $4, 2; lop3.b32 a, b, 0x01C001C0, a, 0xEA;
        fma.rn.bf16x2 $2, a, $5, z;
        and.b32 a, $4, z; shr.u32 b, $4, 6; lop3.b32 a, b, 0x01C001C0, a, 0xEA;
        fma.rn.bf16x2 $3, a, $5, z;
        }""",
        "=r,=r,=r,=r,r,r",
        [words, factors],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    return gl.join(gl.join(d0, d2), gl.join(d1, d3)).reshape([64, 128])


@warp_device
def _near_codes(low: Block, high: Block, factors: Block) -> Block:
    """The same of MXFP8 words: codes 0 to 3 in ``low``, 4 to 7 in ``high``."""
    d0, d1, d2, d3 = gl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, z;
        mov.b32 z, 0x80008000;
        prmt.b32 b, $4, $5, 0x4400; and.b32 a, b, z; shr.u32 b, b, 4; lop3.b32 a, b, 0x07F007F0, a, 0xEA;
        fma.rn.bf16x2 $0, a, $6, z;
        prmt.b32 b, $4, $5, 0x5511; and.b32 a, b, z; shr.u32 b, b, 4; lop3.b32 a, b, 0x07F007F0, a, 0xEA;
        fma.rn.bf16x2 $1, a, $6, z;
        prmt.b32 b, $4, $5, 0x6622; and.b32 a, b, z; shr.u32 b, b, 4; lop3.b32 a, b, 0x07F007F0, a, 0xEA;
        fma.rn.bf16x2 $2, a, $6, z;
        prmt.b32 b, $4, $5, 0x7733; and.b32 a, b, z; shr.u32 b, b, 4; lop3.b32 a, b, 0x07F007F0, a, 0xEA;
        fma.rn.bf16x2 $3, a, $6, z;
        }""",
        "=r,=r,=r,=r,r,r,r",
        [low, high, factors],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    return gl.join(gl.join(d0, d2), gl.join(d1, d3)).reshape([64, 128])


@warp_device
def _far_factors(pairs: Block) -> Block:
    """Factors of FP4 words [64, 32] from pairs of e4m3 bytes [64, 8]: scale times 2**94; 127 is NaN."""
    wide = pairs.to(gl.int32)
    f0, f1 = gl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, n, z, x, y;
        mov.b32 z, 0x80008000; mov.b32 x, 0x7B807B80; mov.b32 y, 0x6E806E80;
        prmt.b32 a, $2, 0, 0x4140;
        and.b32 a, a, 0x007F007F;
        add.u32 n, a, 0x00010001; and.b32 n, n, 0x00800080; mul.lo.u32 n, n, 0x1FF;
        shl.b32 b, a, 4;
        fma.rn.bf16x2 b, b, x, z;
        fma.rn.bf16x2 b, b, y, z;
        or.b32 b, b, n;
        prmt.b32 $0, b, b, 0x1010;
        prmt.b32 $1, b, b, 0x3232;
        }""",
        "=r,=r,r",
        [wide],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    both = gl.join(f0, f1).reshape([64, 16])
    return gl.convert_layout(gl.join(both, both).reshape([64, 32]), FAR_WORDS)


@warp_device
def _near_factors(scales: Block) -> Block:
    """Factors of pairs of MXFP8 words [64, 32] from two words of e8m0 bytes, each four times [64, 8]; 255 is
    NaN.
    """
    # a thread has words 0 and 1, and of both it needs bytes 0 and 2, or 1 and 3
    odd = gl.arange(0, 8, layout=gl.SliceLayout(0, FAR_PAIRS)) // 2 % 2
    own = scales >> (8 * odd)[None, :]
    wide = gl.join(own & 255, (own >> 16) & 255)
    wide = wide.reshape([64, 2, 4, 2]).permute([0, 1, 3, 2]).reshape([64, 16])
    pattern = gl.where(wide == 255, 0x7FC0, gl.minimum(wide + 88, 254) << 7)
    pattern = pattern | (pattern << 16)
    return gl.join(pattern, pattern).reshape([64, 32])


@warp_device
def slot_of(slots: Block, row: Block, num_slots: Block, tile: Block) -> Block:
    """Slots of a tile [64], -1 past the end."""
    place = tile * SLOTS + gl.arange(0, SLOTS, layout=gl.SliceLayout(1, FAR_WORDS))
    return gl.load(slots + row * num_slots + place, mask=place < num_slots, other=-1)


@warp_device
def _load(
    start: Block, slot: Block, step: Block, NUM: gl.constexpr, PLACE: gl.constexpr, EACH: gl.constexpr
) -> Block:
    """``NUM`` numbers of records [64], each ``EACH`` times; ``start`` is where the first one has them; zeros
    of absent ones.
    """
    column = gl.arange(0, NUM * EACH, layout=gl.SliceLayout(0, PLACE)) // EACH
    slot = gl.convert_layout(slot, gl.SliceLayout(1, PLACE))
    at = (start + column)[None, :] + (slot.to(gl.int64) * step)[:, None]
    return gl.load(at, mask=(slot >= 0)[:, None], other=0)


@warp_device
def load_far(words: Block, pairs: Block, slot: Block, STEP: gl.constexpr) -> tuple[Block, Block]:
    """Half of FP4 records: words [64, 32], scale pairs [64, 8]."""
    codes = _load(words, slot, STEP, 32, FAR_WORDS, 1)
    return codes, _load(pairs + 128, slot, 2 * STEP, 8, FAR_PAIRS, 1)


@warp_device
def ask_far(words: Block, slot: Block, STEP: gl.constexpr) -> None:
    """Bring FP4 records nearer, to the second cache."""
    own = gl.convert_layout(slot, gl.SliceLayout(1, _ASKING))[:, None].broadcast_to([64, 4])
    column = gl.minimum(24 * gl.arange(0, 4, layout=gl.SliceLayout(0, _ASKING)), 71)
    gl.inline_asm_elementwise(
        "{.reg .pred p; mov.b32 $0, 0; setp.ge.s32 p, $2, 0; @p prefetch.global.L2 [$1];}",
        "=r,l,r",
        [(words + column)[None, :] + own.to(gl.int64) * STEP, own],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@warp_device
def load_near(words: Block, number: Block, slot: Block, STEP: gl.constexpr) -> tuple[Block, Block]:
    """Half ``number`` of MXFP8 records: words [64, 64], words of scales [64, 2], each four times."""
    codes = _load(words + 64 * number, slot, STEP, 64, NEAR_WORDS, 1)
    return codes, _load(words + 128 + 2 * number, slot, STEP, 2, FAR_PAIRS, 4)


@warp_device
def decode_far(half: Block, codes: Block, pairs: Block) -> None:
    """Half a tile of FP4 records into ``half`` int32 [64, 128]."""
    half.store(_far_codes(codes, _far_factors(pairs)))


@warp_device
def decode_near(half: Block, codes: Block, scales: Block) -> None:
    """Half a tile of MXFP8 records into ``half``."""
    low, high = gl.split(codes.reshape([64, 32, 2]))
    factors = gl.convert_layout(_near_factors(scales), low.type.layout)
    half.store(_near_codes(low, high, factors))
