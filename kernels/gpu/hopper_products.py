"""Two runs of 128 outputs of an expert times 128 pairs, decoded beside the matrix unit, for Hopper chips.

256 channels at a time. While the unit works on the codes j of a run, the warps decode the next ones,
straight into the registers it reads them from: a word of ``mxfp4_weights.py`` holds what a thread owes it.
Rows lie in shared memory as four planes, one for each j, so that a step of the unit finds its 16 channels
side by side.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device

PRODUCTS: gl.constexpr = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 128, 16]))
LEFT: gl.constexpr = gl.constexpr(gl.DotOperandLayout(0, PRODUCTS.value, 2))
WORDS: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0, 0], [0, 0, 4], [0, 1, 0], [0, 2, 0]],
        [[0, 0, 1], [0, 0, 2], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[16, 0, 0], [32, 0, 0], [64, 0, 0]],
        [],
        [128, 4, 8],
    )
)
FLAT: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8], [0, 16]],
        [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0], [64, 0]],
        [],
        [128, 32],
    )
)
SCALES: gl.constexpr = gl.constexpr(gl.SliceLayout(2, WORDS.value))
ROWS: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0]))
CODES: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [8, 1], [1, 0]))
BYTES: gl.constexpr = gl.constexpr(gl.BlockedLayout([1, 16], [4, 8], [8, 1], [1, 0]))
PLANE: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 16))
LINE: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 32))
PLAIN: gl.constexpr = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
_DECODE: gl.constexpr = gl.constexpr(
    (
        "and.b32 a, $1, 0x81C081C0;",
        "shl.b32 a, $1, 3; and.b32 a, a, 0x81C081C0;",
        "shl.b32 a, $1, 6; and.b32 a, a, 0x81C081C0;",
        "shr.u32 a, $1, 4; and.b32 a, a, 0x00C000C0; shr.u32 b, $1, 5;"
        " lop3.b32 a, b, 0x01000100, a, 0xEA; shl.b32 b, $1, 1; lop3.b32 a, b, 0x80008000, a, 0xEA;",
    )
)


@warp_device
def _codes_of(words: Block, factors: Block, J: gl.constexpr) -> Block:
    """Codes ``J`` of int32 words [128, 4, 8] times the factors of blocks [128, 4]: left operand [128, 64]."""
    by = factors.expand_dims(2).broadcast_to([128, 4, 8])
    twice = gl.join(words, words)
    left = gl.inline_asm_elementwise(
        "{ .reg .b32 a, b, z; mov.b32 z, 0x80008000; " + _DECODE[J] + " fma.rn.bf16x2 $0, a, $3, z; }",
        "=r,r,r,r,r",
        [twice, gl.join(by, by)],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )
    return gl.convert_layout(left.reshape([128, 64]), LEFT)


@warp_device
def _factors(scales: Block, FIRST: gl.constexpr) -> Block:
    """Factors of the blocks of a step, [128, 4], from bytes [8, 128] in shared memory."""
    wide = scales.slice(FIRST, 4, dim=0).permute((1, 0)).load(SCALES).to(gl.int32) << 7
    return wide | (wide << 16)


@warp_device
def _fetch(
    rows: Block,
    first_words: Block,
    first_scales: Block,
    second_words: Block,
    second_scales: Block,
    step: Block,
    stage: Block,
    planes: Block,
    words: Block,
    scales: Block,
    depth: Block,
    outputs: Block,
) -> None:
    """Start copies of a step: planes of the rows, words and scales of both runs of outputs."""
    column = gl.arange(0, 64, layout=gl.SliceLayout(0, ROWS))
    channel = step * 256 + column // 16 * 64 + column % 16
    for j in gl.static_range(4):
        async_copy.async_copy_global_to_shared(
            planes.index(4 * stage + j), rows[:, None] + (channel + 16 * j)[None, :]
        )
    line = gl.arange(0, 128, layout=gl.SliceLayout(1, CODES))
    word = gl.arange(0, 32, layout=gl.SliceLayout(0, CODES))
    at = line[:, None] * (depth // 8) + (step * 32 + word)[None, :]
    async_copy.async_copy_global_to_shared(words.index(2 * stage), first_words + at)
    async_copy.async_copy_global_to_shared(words.index(2 * stage + 1), second_words + at)
    # bytes of low halves of blocks first; 24 of the 32 lines say again what the first eight say
    line = gl.arange(0, 32, layout=gl.SliceLayout(1, BYTES)) % 8
    byte = gl.arange(0, 128, layout=gl.SliceLayout(0, BYTES))
    at = (step * 8 + line % 4 * 2 + line // 4)[:, None] * outputs + byte[None, :]
    async_copy.async_copy_global_to_shared(scales.index(2 * stage), first_scales + at)
    async_copy.async_copy_global_to_shared(scales.index(2 * stage + 1), second_scales + at)
    async_copy.commit_group()


@warp_device
def two_products(
    rows: Block,
    first_words: Block,
    first_scales: Block,
    second_words: Block,
    second_scales: Block,
    depth: Block,
    outputs: Block,
    STEPS: gl.constexpr,
) -> tuple[Block, Block]:
    """float32 [128 outputs, 128 pairs] of both runs; ``rows`` points at the rows of the pairs."""
    planes = gl.allocate_shared_memory(gl.bfloat16, [8, 128, 64], PLANE)
    words = gl.allocate_shared_memory(gl.int32, [4, 128, 32], LINE)
    scales = gl.allocate_shared_memory(gl.uint8, [4, 32, 128], PLAIN)
    a = gl.zeros([128, 128], gl.float32, layout=PRODUCTS)
    b = gl.zeros([128, 128], gl.float32, layout=PRODUCTS)
    _fetch(
        rows,
        first_words,
        first_scales,
        second_words,
        second_scales,
        0,
        0,
        planes,
        words,
        scales,
        depth,
        outputs,
    )
    for step in range(STEPS):
        stage = step % 2
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        if step + 1 < STEPS:
            _fetch(
                rows,
                first_words,
                first_scales,
                second_words,
                second_scales,
                step + 1,
                1 - stage,
                planes,
                words,
                scales,
                depth,
                outputs,
            )
        w0 = gl.convert_layout(words.index(2 * stage).load(FLAT).reshape([128, 4, 8]), WORDS)
        w1 = gl.convert_layout(words.index(2 * stage + 1).load(FLAT).reshape([128, 4, 8]), WORDS)
        for j in gl.static_range(4):
            right = planes.index(4 * stage + j).permute((1, 0))
            left = _codes_of(w0, _factors(scales.index(2 * stage), 4 * (j // 2)), j)
            a = warpgroup_mma(left, right, a, is_async=True)
            a, b = warpgroup_mma_wait(1, deps=(a, b))
            left = _codes_of(w1, _factors(scales.index(2 * stage + 1), 4 * (j // 2)), j)
            b = warpgroup_mma(left, right, b, is_async=True)
            a, b = warpgroup_mma_wait(1, deps=(a, b))
        a, b = warpgroup_mma_wait(0, deps=(a, b))
    return a, b
