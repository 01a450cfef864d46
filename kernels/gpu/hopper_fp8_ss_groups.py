"""The groups of warps of ``hopper_fp8.py``: one asks for copies, one decodes, one multiplies.

Decoded weights lie in shared memory as the matrix unit reads them, in tiles of 64 channels. The unit takes 64
rows of weights at a time: where a tile has fewer outputs, it reads what lies behind them, and nobody looks at
the sums. Places are freed one step late, when the products that read them are known to be done.

Legend: T outputs of a tile, M rows, Q tiles of 64 channels of a step, R steps that are decoded ahead; a block
is 32 outputs or channels that share a factor.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import after_launches_before, warp_device, warp_layout

_DECODE: gl.constexpr = gl.constexpr(
    "{ .reg .b32 a, b, z; mov.b32 z, 0x80008000;"
    " shl.b32 a, $2, 8; shl.b32 b, $2, 4; and.b32 b, b, 0x07F007F0; lop3.b32 a, a, z, b, 0xEA;"
    " fma.rn.bf16x2 $0, a, $6, z;"
    " shr.u32 b, $2, 4; and.b32 b, b, 0x07F007F0; lop3.b32 a, $2, z, b, 0xEA;"
    " fma.rn.bf16x2 $1, a, $6, z; }"
)
PLAIN: gl.constexpr = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
CUBE: gl.constexpr = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
PLANE: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 16))
LINE: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 32))
BLOCK: gl.constexpr = gl.constexpr(gl.NVMMASharedLayout(128, 32, rank=3))


@warp_layout
def _products(warps: int, rows: int) -> gl.NVMMADistributedLayout:
    """Sums [16 * warps, rows] as the matrix unit leaves them."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, rows, 16])


@warp_layout
def _shape(outputs: int, quarters: int) -> list[int]:
    """Words of a step: tiles of 64 channels, blocks, runs of eight outputs in one, outputs of a run, then of
    an output 2 blocks, halves of one, words.
    """
    blocks = max(outputs // 32, 1)
    return [quarters, blocks, outputs // blocks // 8, 8, 2, 2, 4]


@warp_layout
def _lines(outputs: int, quarters: int, warps: int) -> gl.DistributedLinearLayout:
    """Words of a step as they are copied, [lines of two outputs, 32]: four a thread of each run."""
    count = quarters * outputs // 8
    runs = [[4 << i, 0] for i in range(count.bit_length() - 1)]
    cut = warps.bit_length() - 1
    lanes = [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], *runs[cut:]], lanes, runs[:cut], [], [4 * count, 32])


@warp_layout
def _codes(outputs: int, quarters: int, warps: int) -> gl.DistributedLinearLayout:
    """Words of a step: a thread has the four of 16 channels of an output in one run, or in several."""
    shape = _shape(outputs, quarters)
    runs = []
    for axis in (2, 1, 0):
        step = 1
        while step < shape[axis]:
            runs.append([step if i == axis else 0 for i in range(7)])
            step *= 2
    cut = warps.bit_length() - 1
    lanes = [[0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 1, 0, 0]]
    lanes += [[0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 2, 0, 0, 0], [0, 0, 0, 4, 0, 0, 0]]
    words = [[0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 2]]
    return gl.DistributedLinearLayout(words + runs[cut:], lanes, runs[:cut], [], shape)


@warp_device
def _passed(mark: Block) -> None:
    """Every thread by itself says that it has read what the mark guards.

    The instruction is one of asynchronous copies, of which a thread here has none to wait for: the plain one
    is a single thread's, behind a barrier of all.
    """
    async_copy.mbarrier_arrive(mark, increment_count=False)


@warp_device
def ask(
    begin: Block, words: Block, rows: Block, held: Block, marks: Block, steps: Block, Q: gl.constexpr
) -> None:
    """Have the words and rows of every step copied, each as soon as its place is free."""
    quarter, line, m0, own = begin
    codes, planes, _, _ = held
    full, read, used, _, _ = marks
    STAGES: gl.constexpr = full.shape[0]
    total: gl.constexpr = words.block_type.nbytes + rows.block_type.nbytes
    ready_places = gl.minimum(steps, STAGES - 1)
    for step in range(
        ready_places
    ):  # words are there since the weights were loaded; rows may be in the making
        mbarrier.expect(full.index(step), total)
        tma.async_copy_global_to_shared(
            words, [quarter + step * Q, line, 0], full.index(step), codes.index(step)
        )
    after_launches_before()
    for step in range(ready_places):
        tma.async_copy_global_to_shared(
            rows, [m0, own + step * (64 * Q)], full.index(step), planes.index(step)
        )
    for step in range(ready_places, steps):
        stage = step % STAGES
        mbarrier.wait(read.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.wait(used.index(stage), ((step + 1) // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), total)
        here, channel = full.index(stage), own + step * (64 * Q)
        tma.async_copy_global_to_shared(words, [quarter + step * Q, line, 0], here, codes.index(stage))
        tma.async_copy_global_to_shared(rows, [m0, channel], here, planes.index(stage))


@warp_device
def decode(
    factors: Block,
    place: Block,
    held: Block,
    marks: Block,
    steps: Block,
    T: gl.constexpr,
    Q: gl.constexpr,
    W: gl.constexpr,
    R: gl.constexpr,
    FIRST: gl.constexpr,
    D: gl.constexpr,
) -> None:
    """Decode the words of every ``D``-th step from ``FIRST``; R steps have a place."""
    codes, _, tiles, all_powers = held
    powers = all_powers.index(FIRST)
    full, read, _, ready, free = marks
    line, first, depth = place
    STAGES: gl.constexpr = full.shape[0]
    PAIRS: gl.constexpr = powers.shape[0]
    BLOCKS: gl.constexpr = powers.shape[1] // 2
    FACTORS: gl.constexpr = gl.BlockedLayout([1, 2 * BLOCKS], [32, 1], [W, 1], [1, 0])
    pair = gl.arange(0, PAIRS, layout=gl.SliceLayout(1, FACTORS))
    both = gl.arange(0, 2 * BLOCKS, layout=gl.SliceLayout(0, FACTORS))
    at = (first // 32 + pair * 2)[:, None] + ((line + both // 2) * (depth // 32) + both % 2)[None, :]
    powers.store(gl.load(factors + at, mask=(pair < steps * Q)[:, None], other=0))
    powers_of = powers._reinterpret(gl.int32, [PAIRS // Q, Q, BLOCKS, 2], CUBE)
    lines = codes._reinterpret(gl.int32, [STAGES, Q * T // 2, 32], LINE)
    CODES: gl.constexpr = _codes(T, Q, W)
    POWERS: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(5, gl.SliceLayout(6, CODES))))
    gl.thread_barrier()
    for step in range(FIRST, steps, D):
        stage, slot = step % STAGES, step % R
        by = powers_of.index(step).load(POWERS).expand_dims(2).expand_dims(3).expand_dims(5).expand_dims(6)
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        own = lines.index(stage).load(_lines(T, Q, W)).reshape(_shape(T, Q))
        own, by = gl.convert_layout(own, CODES), by.broadcast_to(_shape(T, Q))
        own, by = gl.join(own, own), gl.join(by, by)
        values = gl.inline_asm_elementwise(
            _DECODE,
            "=r,=r,r,r,r,r,r,r,r,r",
            [gl.join(own, own), gl.join(by, by)],
            dtype=gl.bfloat16,
            is_pure=True,
            pack=4,
        )
        _passed(read.index(stage))
        mbarrier.wait(free.index(slot), ((step + 1) // R & 1) ^ 1)
        tiles.index(slot * Q)._reinterpret(gl.bfloat16, [Q * T, 64], PLANE).store(values.reshape([Q * T, 64]))
        fence_async_shared()
        _passed(ready.index(slot))


@warp_device
def multiply(
    ends: Block,
    sizes: Block,
    places: Block,
    held: Block,
    marks: Block,
    steps: Block,
    T: gl.constexpr,
    BM: gl.constexpr,
    Q: gl.constexpr,
    W: gl.constexpr,
    R: gl.constexpr,
    PER: gl.constexpr,
    PARTS: gl.constexpr,
    ROUND: gl.constexpr,
) -> None:
    """Products of the program's tile, and its end."""
    PRODUCTS: gl.constexpr = _products(W, BM)
    out, partials = ends
    num_rows, num_outputs, stride = sizes
    n0, m0, part, group = places
    _, planes, tiles, _ = held
    full, _, used, ready, free = marks
    STAGES: gl.constexpr = full.shape[0]
    rows = planes._reinterpret(gl.bfloat16, [STAGES * Q, BM, 64], PLANE)
    total = gl.zeros([16 * W, BM], gl.float32, layout=PRODUCTS)
    acc = gl.zeros([16 * W, BM], gl.float32, layout=PRODUCTS)
    after_launches_before()
    for step in range(steps):
        stage, slot = step % STAGES, step % R
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        mbarrier.wait(ready.index(slot), step // R & 1)
        for q in gl.static_range(Q):
            left = tiles.index(slot * Q + q)._reinterpret(gl.bfloat16, [16 * W, 64], PLANE)
            right = rows.index(stage * Q + q).permute((1, 0))
            acc = warpgroup_mma(left, right, acc, is_async=True)
        acc = warpgroup_mma_wait(Q, deps=(acc,))
        # the first time this frees the last places, which whoever fills them counts with
        _passed(used.index((step + STAGES - 1) % STAGES))
        _passed(free.index((step + R - 1) % R))
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
    n, mask = n0 + row, (row < T)[:, None] & (m < num_rows)[None, :]
    m = m.to(gl.int64)
    if PARTS > 1:
        at = (group * PARTS + part) * num_rows.to(gl.int64) + m
        gl.store(partials + (at * num_outputs)[None, :] + n[:, None], acc, mask=mask)
    else:
        if ROUND:
            acc = _rounded(acc)
        targets = out + group * num_outputs + (m * stride)[None, :] + n[:, None]
        gl.store(targets, acc.to(out.dtype.element_ty), mask=mask)


@warp_device
def _rounded(x: Block) -> Block:
    """As ``elementary.rounded``."""
    bits = x.to(gl.int32, bitcast=True)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return gl.where(x == x, near.to(gl.float32, bitcast=True), x)
