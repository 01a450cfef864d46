"""The groups of warps of ``hopper_fp8.py``: one asks for copies, one decodes and multiplies.

A thread decodes a word of ``fp8_weights.py`` straight into two registers that the matrix unit reads weights
from, so decoded weights never pass through memory. Where a tile holds half as many outputs as the unit has
rows, zeros are the other half of its registers.

Legend: M rows, N outputs, K channels, W warps that multiply, Q quarters of 64 channels of a step; a run is
eight outputs, a block 32 outputs or channels that share a factor.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device, warp_layout

_DECODE: gl.constexpr = gl.constexpr(
    "{ .reg .b32 a, b, z; mov.b32 z, 0x80008000;"
    " shl.b32 a, $2, 8; shl.b32 b, $2, 4; and.b32 b, b, 0x07F007F0; lop3.b32 a, a, z, b, 0xEA;"
    " fma.rn.bf16x2 $0, a, $6, z;"
    " shr.u32 b, $2, 4; and.b32 b, b, 0x07F007F0; lop3.b32 a, $2, z, b, 0xEA;"
    " fma.rn.bf16x2 $1, a, $6, z; }"
)
PLAIN: gl.constexpr = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
PLANE: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 16))
LINE: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 32))
BLOCK: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 32, rank=3))


@warp_layout
def _products(warps: int, rows: int) -> gl.NVMMADistributedLayout:
    """Sums [16 * warps, rows] as the matrix unit leaves them."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, rows, 16])


@warp_layout
def _left(warps: int, rows: int) -> gl.DotOperandLayout:
    """Weights [16 * warps, 64] as the matrix unit takes them from registers."""
    return gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, rows, 16]), 2)


@warp_layout
def _flat(warps: int, runs: int) -> gl.DistributedLinearLayout:
    """Words [4 lines of each run of eight outputs, 32]: a thread has four in a row of each of its warp's."""
    registers = [[0, 1], [0, 2]] + ([[4, 0]] if runs == 2 else [])
    lanes = [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]]
    own = [[4 * runs << i, 0] for i in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, own, [], [4 * runs * warps, 32])


@warp_layout
def _codes(warps: int, runs: int) -> gl.DistributedLinearLayout:
    """The same words [blocks of 32 outputs, 4 runs, 8 outputs, 4, 2 blocks of 32 channels, 2 steps]."""
    registers = [[0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 0]] + ([[0, 1, 0, 0, 0, 0]] if runs == 2 else [])
    lanes = [[0, 0, 0, 1, 0, 0], [0, 0, 0, 2, 0, 0]]
    lanes += [[0, 0, 1, 0, 0, 0], [0, 0, 2, 0, 0, 0], [0, 0, 4, 0, 0, 0]]
    steps = [runs << i for i in range(warps.bit_length() - 1)]
    own = [[0, one, 0, 0, 0, 0] if one < 4 else [one // 4, 0, 0, 0, 0, 0] for one in steps]
    return gl.DistributedLinearLayout(registers, lanes, own, [], [runs * warps // 4, 4, 8, 4, 2, 2])


@warp_device
def _load(words: Block, factors: Block, W: gl.constexpr, RUNS: gl.constexpr) -> tuple[Block, Block]:
    """Words of a quarter in shared memory, and factors [blocks, 2] there, as ``_codes`` has them."""
    CODES: gl.constexpr = _codes(W, RUNS)
    own = words.load(_flat(W, RUNS)).reshape([RUNS * W // 4, 4, 8, 4, 2, 2])
    by = factors.load(gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(5, CODES)))))
    return gl.convert_layout(own, CODES), by.expand_dims(1).expand_dims(2).expand_dims(3).expand_dims(5)


@warp_device
def _weights(own: Block, by: Block, W: gl.constexpr, RUNS: gl.constexpr, BM: gl.constexpr) -> Block:
    """Words times factors, the left operand of the matrix unit: bfloat16 [16 * W, 64]."""
    by = by.broadcast_to([RUNS * W // 4, 4, 8, 4, 2, 2])
    own, by = gl.join(own, own), gl.join(by, by)
    values = gl.inline_asm_elementwise(
        _DECODE,
        "=r,=r,r,r,r,r,r,r,r,r",
        [gl.join(own, own), gl.join(by, by)],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=4,
    )
    # block, run, output, c, block of channels, step, half of a step, channel of a pair
    if RUNS == 1:
        values = gl.join(values, gl.zeros_like(values)).permute([0, 1, 8, 2, 4, 5, 6, 3, 7])
    else:
        values = values.permute([0, 1, 2, 4, 5, 6, 3, 7])
    return gl.convert_layout(values.reshape([16 * W, 64]), _left(W, BM))


@warp_device
def _rounded(x: Block) -> Block:
    """As ``elementary.rounded``."""
    bits = x.to(gl.int32, bitcast=True)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return gl.where(x == x, near.to(gl.float32, bitcast=True), x)


@warp_device
def ask(
    place: Block, words: Block, rows: Block, held: Block, marks: Block, steps: Block, Q: gl.constexpr
) -> None:
    """Have the words and rows of every step copied, each as soon as its place is free."""
    quarter, line, m0, own = place
    codes, planes, _ = held
    full, empty = marks
    STAGES: gl.constexpr = full.shape[0]
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), words.block_type.nbytes + rows.block_type.nbytes)
        here, channel = full.index(stage), own + step * (64 * Q)
        tma.async_copy_global_to_shared(words, [quarter + step * Q, line, 0], here, codes.index(stage))
        tma.async_copy_global_to_shared(rows, [m0, channel], here, planes.index(stage))


@warp_device
def _passed(mark: Block) -> None:
    """Every thread by itself says that it has read what the mark guards.

    The instruction is one of asynchronous copies, of which a thread here has none to wait for: the plain one
    is a single thread's, behind a barrier of all.
    """
    async_copy.mbarrier_arrive(mark, increment_count=False)


@warp_device
def multiply(
    ends: Block,
    sizes: Block,
    places: Block,
    held: Block,
    marks: Block,
    steps: Block,
    W: gl.constexpr,
    RUNS: gl.constexpr,
    BM: gl.constexpr,
    Q: gl.constexpr,
    PER: gl.constexpr,
    PARTS: gl.constexpr,
    ROUND: gl.constexpr,
) -> None:
    """Products of the program's tile, and its end."""
    PRODUCTS: gl.constexpr = _products(W, BM)
    GROUPS: gl.constexpr = RUNS * W
    factors, out, partials = ends
    num_rows, num_outputs, depth, stride = sizes
    n0, m0, first, part, group = places
    codes, planes, powers = held
    full, empty = marks
    STAGES: gl.constexpr = full.shape[0]
    PAIRS: gl.constexpr = powers.shape[0]
    FACTORS: gl.constexpr = gl.BlockedLayout([1, GROUPS // 2], [32, 1], [W, 1], [1, 0])
    pair = gl.arange(0, PAIRS, layout=gl.SliceLayout(1, FACTORS))
    both = gl.arange(0, GROUPS // 2, layout=gl.SliceLayout(0, FACTORS))
    line = ((group * num_outputs + n0) // 32 + both // 2) * (depth // 32)
    known = gl.load(
        factors + (first // 32 + pair * 2)[:, None] + (line + both % 2)[None, :],
        mask=(pair < steps * Q)[:, None],
        other=0,
    )
    powers.store(known)
    powers_of = powers._reinterpret(gl.int32, [PAIRS, GROUPS // 4, 2], PLAIN)
    quarters = codes._reinterpret(gl.int32, [STAGES * Q, 4 * GROUPS, 32], LINE)
    rows = planes._reinterpret(gl.bfloat16, [STAGES * Q, BM, 64], PLANE)
    total = gl.zeros([16 * W, BM], gl.float32, layout=PRODUCTS)
    acc = gl.zeros([16 * W, BM], gl.float32, layout=PRODUCTS)
    gl.thread_barrier()
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        own, by = _load(quarters.index(stage * Q), powers_of.index(step * Q), W, RUNS)
        for q in gl.static_range(Q):
            left = _weights(own, by, W, RUNS, BM)
            if q + 1 < Q:
                own, by = _load(quarters.index(stage * Q + q + 1), powers_of.index(step * Q + q + 1), W, RUNS)
            acc = warpgroup_mma(left, rows.index(stage * Q + q).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))
            if q == 0:
                if step > 0:  # nothing that multiplied in the step before is still on its way
                    _passed(empty.index((step - 1) % STAGES))
        if PER > 0:
            if (step + 1) % PER == 0:
                acc = warpgroup_mma_wait(0, deps=(acc,))
                total = total + acc
                acc = gl.zeros([16 * W, BM], gl.float32, layout=PRODUCTS)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    if PER > 0:
        acc = total
    row = gl.arange(0, 16 * W, layout=gl.SliceLayout(1, PRODUCTS))
    m = m0 + gl.arange(0, BM, layout=gl.SliceLayout(0, PRODUCTS))
    if RUNS == 1:
        n, real = n0 + row // 16 * 8 + row % 8, row % 16 < 8
    else:
        n, real = n0 + row, row >= 0
    mask = real[:, None] & (m < num_rows)[None, :]
    m = m.to(gl.int64)
    if PARTS > 1:
        at = (group * PARTS + part) * num_rows.to(gl.int64) + m
        gl.store(partials + (at * num_outputs)[None, :] + n[:, None], acc, mask=mask)
    else:
        if ROUND:
            acc = _rounded(acc)
        targets = out + group * num_outputs + (m * stride)[None, :] + n[:, None]
        gl.store(targets, acc.to(out.dtype.element_ty), mask=mask)
