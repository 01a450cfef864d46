"""Tiles of 64 packed MXFP4 keys in the registers of a warp group, for the index scan of Hopper chips.

A four-bit float is an e4m3 number times a power of two, so a group of 32 channels is one instruction of the
matrix unit on codes, not on values: 36 is the largest product and a quarter the smallest step, so the sum of
a group is exact in the unit's own accumulator. Codes go from memory to the registers the unit reads them
from: no shared memory, no change of layout.

Channels of a group come as its even codes, then its odd ones.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device

HEADS: gl.constexpr = gl.constexpr(32)
CHANNELS: gl.constexpr = gl.constexpr(128)
ENTRIES: gl.constexpr = gl.constexpr(64)
SCORES: gl.constexpr = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 32]))
LEFT: gl.constexpr = gl.constexpr(gl.DotOperandLayout(0, SCORES.value, 4))
CODES: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 4]
    )
)
_FEW: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 1, 1], [1, 8, 4], [4, 1, 1], [2, 1, 0]))
"""Of [4, 8, 4] numbers: one a thread."""
EIGHTS: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(32, 8))


@warp_device
def _planes(words: Block) -> Block:
    """Words of eight codes, each four times over: bytes, e4m3 of the even codes and of the odd ones, 2**-6 of
    their values.
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 a, b;
        shl.b32 a, $2, 4; and.b32 a, a, 0x80808080; shl.b32 b, $2, 2; lop3.b32 $0, b, 0x1C1C1C1C, a, 0xEA;
        and.b32 a, $2, 0x80808080; shr.u32 b, $2, 2; lop3.b32 $1, b, 0x1C1C1C1C, a, 0xEA;
        }""",
        "=r,=r,r,r,r,r",
        [words],
        dtype=(gl.int8, gl.int8),
        is_pure=True,
        pack=4,
    )


@warp_device
def weighted(dots: Block, weight: Block) -> Block:
    """``bf16(max(dots, 0)) * weight``, rounded to bfloat16, as float32."""
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 a, z;
        mov.b32 z, 0x80008000;
        cvt.rn.relu.bf16x2.f32 a, $3, $2;
        fma.rn.bf16x2 a, a, $4, z;
        shl.b32 $0, a, 16;
        and.b32 $1, a, 0xFFFF0000;
        }""",
        "=r,=r,r,r,r",
        [dots, weight],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )


@warp_device
def ordered(scores: Block) -> Block:
    """bfloat16 of ``scores`` as int32 in the same order."""
    bits = (scores + 0.0).to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32)
    return bits ^ ((bits >> 15) & 0x7FFF)


@warp_device
def left_operand(codes: Block) -> Block:
    """Words of a group [64, 4] as the matrix unit takes them: e4m3 [64, 32], even codes first."""
    twice = gl.join(codes, codes)
    even, odd = _planes(gl.join(twice, twice).reshape([64, 16]))
    both = gl.join(even, odd).permute([0, 2, 1]).reshape([64, 32])
    return gl.convert_layout(both, LEFT).to(gl.float8e4nv, bitcast=True)


@warp_device
def group_dots(left: Block, queries: Block, PART: gl.constexpr) -> Block:
    """Start the products of group ``PART`` with all heads: float32 [64, 32], exact."""
    zero = gl.zeros([64, 32], gl.float32, layout=SCORES)
    return warpgroup_mma(left, queries.index(PART).permute((1, 0)), zero, use_acc=False, is_async=True)


@warp_device
def _halves(numbers: Block) -> tuple[Block, Block]:
    """A tile's numbers [64, 4] as [4, 8, 4] of rows 0 to 7 of every sixteen, and of rows 8 to 15."""
    low, high = gl.split(numbers.reshape([4, 2, 8, 4]).permute([0, 2, 3, 1]))
    return low, high


@warp_device
def _in_order(numbers: Block) -> Block:
    """Numbers [4, 8, 4], lanes 0 and 1 with rows 0 to 7, the others 8 to 15, as rows [64, 2], each twice."""
    return numbers.reshape([4, 8, 2, 2]).permute([0, 2, 1, 3]).reshape([64, 2])


@warp_device
def _lane() -> Block:
    """Which of the four lanes of a row, [4, 8, 4]."""
    lane = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, _FEW)))
    return lane[None, :][:, None, :].broadcast_to([4, 8, 4])


@warp_device
def halves_of_sums(products: Block) -> Block:
    """Sums of [64, 32] over the heads as two numbers an entry, [64, 2], that are yet to be added.

    Each thread adds its own, of two rows; then two of four lanes go on with one row and two with the other.
    """
    own = gl.sum(products.reshape([64, 4, 4, 2]).permute([0, 2, 1, 3]).reshape([64, 4, 8]), axis=2)
    low, high = _halves(own)
    half = gl.inline_asm_elementwise(
        """{
        .reg .pred p; .reg .b32 k, s;
        setp.gt.s32 p, $3, 1;
        selp.b32 k, $2, $1, p;
        selp.b32 s, $1, $2, p;
        shfl.sync.bfly.b32 s, s, 2, 0x1f, 0xffffffff;
        add.rn.f32 $0, k, s;
        }""",
        "=f,f,f,r",
        [gl.convert_layout(low, _FEW), gl.convert_layout(high, _FEW), _lane()],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )
    return _in_order(half)
