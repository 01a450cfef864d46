"""Index scores of packed MXFP4 keys for Hopper chips, profile fast: products in eight bits.

The codes of a group of 32 channels are multiplied as they are (``hopper_keys.py``); the scales come in
afterwards, a power of two each, in ascending order of groups and in float32. So a score is rounded where
``index_scan.py`` rounds (the product, the weighted product, the sum over heads), and hardly before.

Where eight entries lie takes two or three loads, one after the other: their block, its group of the pool,
the codes. A program makes tables of that for up to 32 tiles of 64 entries (``hopper_ring.py``), so that its
loop only multiplies and adds; codes are asked for three tiles ahead. Scores stay in shared memory: what is
seen, keys, and the largest key of each block follow in the end, for eight entries at a time.

Legend: T rows, Hi = 32 index heads, Ci = 128 channels, Nb candidate blocks; a unit is eight entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from deepinfer.kernels.gpu.capability import multiprocessors
from deepinfer.kernels.gpu.hopper_keys import (
    CHANNELS,
    EIGHTS,
    ENTRIES,
    HEADS,
    group_dots,
    halves_of_sums,
    left_operand,
    ordered,
    weighted,
)
from deepinfer.kernels.gpu.hopper_queries import load_row, store_queries, weights_of_heads
from deepinfer.kernels.gpu.hopper_ring import (
    FLAT,
    LAST,
    OWN,
    PLAIN,
    RING,
    TILES,
    UNIT,
    UNITS,
    ask,
    codes_at,
    powers_of,
    store_powers,
)
from deepinfer.kernels.gpu.index_scan import check_table
from deepinfer.kernels.gpu.launching import Block, ceil_div
from deepinfer.kernels.gpu.packed_attention import layout_in_words, words_of
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.warp_groups import (
    after_launches_before,
    next_may_begin,
    warp_device,
    warp_kernel,
    warp_launch,
)


@dataclass(frozen=True)
class HopperScanTile:
    """Programs that a multiprocessor holds, and registers of a thread that let it; moves no bit."""

    programs: int
    registers: int


_TILE = HopperScanTile(4, 112)


@warp_device
def _score_tile(
    place: Block,
    free: Block,
    data: Block,
    tables: Block,
    weight: Block,
    tile: Block,
    tiles: Block,
    LAYOUT: gl.constexpr,
) -> None:
    """Leave the scores of the tile whose codes are at ``place`` in shared memory; ``free`` is the place for
    those of the third from here.
    """
    queries, units, powers, scores = tables
    c0, c1, c2, c3 = codes_at(place)
    a0, a1 = left_operand(c0), left_operand(c1)
    d0, d1 = group_dots(a0, queries, 0), group_dots(a1, queries, 1)
    if tile + 3 < tiles:
        ask(free, data, units, tile + 3, LAYOUT)
    else:
        async_copy.commit_group()
    p0, p1, p2, p3 = powers_of(powers, tile)
    a2, a3 = left_operand(c2), left_operand(c3)
    d0, d1 = warpgroup_mma_wait(0, deps=(d0, d1))
    d2, d3 = group_dots(a2, queries, 2), group_dots(a3, queries, 3)
    dots = gl.fma(d1, p1, d0 * p0)
    d2, d3 = warpgroup_mma_wait(0, deps=(d2, d3))
    dots = gl.fma(d3, p3, gl.fma(d2, p2, dots))
    scores.index(tile).store(halves_of_sums(weighted(dots, weight)))


@warp_kernel
def _scan_kernel(
    q: Block,
    w: Block,
    data: Block,
    table: Block,
    counts: Block,
    blocks: Block,
    keys: Block,
    best: Block,
    width_of_table: Block,
    length: Block,
    num_blocks: Block,
    num_tiles: Block,
    LAYOUT: gl.constexpr,
    BLOCK: gl.constexpr,
    WITHIN: gl.constexpr,
    WHOLE: gl.constexpr,
    KEYS: gl.constexpr,
    BEST: gl.constexpr,
) -> None:
    """``num_tiles`` of a row of ``length``. WITHIN: of the entries of ``blocks``. WHOLE: of whole blocks.

    KEYS, BEST: what is written.
    """
    after_launches_before()
    row = gl.program_id(1).to(gl.int64)
    start = gl.program_id(0) * num_tiles
    tiles = gl.minimum(num_tiles, (length + 63) // 64 - start)
    count = gl.load(counts + row).to(gl.int32)
    if not WITHIN:
        count = gl.minimum(count, length)
        tiles = gl.minimum(tiles, (count + 63) // 64 - start)
        if tiles <= 0:
            return
    unit = gl.arange(0, UNITS, layout=gl.SliceLayout(1, OWN))
    place = start * 64 + unit * 8
    there = (unit < tiles * 8) & (place < length)
    block = gl.where(there, (place.to(gl.uint32) // BLOCK).to(gl.int32), -1)
    if WITHIN:
        block = gl.load(blocks + row * num_blocks + gl.maximum(block, 0), mask=there, other=-1)
    own_q, own_w = load_row(q, w, row)
    first = gl.maximum(block, 0)
    group = gl.load(table + row * width_of_table + first.to(gl.uint32) // (LAYOUT[0] // BLOCK))

    queries = gl.allocate_shared_memory(gl.float8e5, [4, 32, 32], EIGHTS)
    downs = gl.allocate_shared_memory(gl.float32, [32], FLAT)
    units = gl.allocate_shared_memory(LAYOUT[5], [TILES, 8], FLAT)
    seen = gl.allocate_shared_memory(gl.int32, [UNITS], FLAT)
    powers = gl.allocate_shared_memory(gl.int32, [TILES, 64, 2], PLAIN)
    scores = gl.allocate_shared_memory(gl.float32, [TILES, 64, 2], PLAIN)
    evens = gl.allocate_shared_memory(gl.int32, [2, 64, 16], RING)
    odds = gl.allocate_shared_memory(gl.int32, [2, 64, 16], RING)

    inside = 0 if BLOCK == UNIT else place & (BLOCK - 1)
    record = (first & (LAYOUT[0] // BLOCK - 1)) * BLOCK + inside
    codes = group.to(LAYOUT[5]) * (LAYOUT[1] // LAYOUT[6]) + record.to(LAYOUT[5]) * (LAYOUT[2] // LAYOUT[6])
    units._reinterpret(LAYOUT[5], [UNITS], FLAT).store(codes)
    seen.store(gl.where(block < 0, 0, count - block * BLOCK - inside))
    last = tiles - 1
    ask(evens.index(0), data, units, 0, LAYOUT)
    ask(odds.index(0), data, units, gl.minimum(1, last), LAYOUT)
    ask(evens.index(1), data, units, gl.minimum(2, last), LAYOUT)
    e = gl.arange(0, 8, layout=gl.SliceLayout(0, OWN))
    at = group.to(LAYOUT[5]) * LAYOUT[1] + (record * LAYOUT[4] + LAYOUT[3]).to(LAYOUT[5])
    words = gl.load(data + at[:, None] + (e * LAYOUT[4])[None, :])
    store_queries(own_q, queries, downs)
    weight = weights_of_heads(own_w, downs)
    store_powers(words, powers)
    tables = (queries, units, powers, scores)
    for pair in range(0, (tiles + 1) // 2):
        # one barrier a tile: its copies are there, and everybody has read the place that the next one gets
        turn = pair & 1
        async_copy.wait_group(2)
        gl.thread_barrier()
        _score_tile(evens.index(turn), odds.index(1 - turn), data, tables, weight, 2 * pair, tiles, LAYOUT)
        async_copy.wait_group(2)
        gl.thread_barrier()
        _score_tile(odds.index(turn), evens.index(turn), data, tables, weight, 2 * pair + 1, tiles, LAYOUT)

    next_may_begin()  # not before: what follows would pile up where there is room first
    halves = scores._reinterpret(gl.float32, [TILES, 128], PLAIN).load(LAST).reshape([UNITS, 8, 2])
    one, other = gl.split(halves)
    key = ordered(one + other)
    unit = gl.arange(0, UNITS, layout=gl.SliceLayout(1, key.type.layout))
    e = gl.arange(0, 8, layout=gl.SliceLayout(0, key.type.layout))
    visible = seen.load(gl.SliceLayout(1, key.type.layout))
    key = gl.where(e[None, :] < visible[:, None], key, -32768)
    if KEYS:
        own = start * (64 // BLOCK) + unit // (BLOCK // 8)
        there = (unit < tiles * 8) & (own < num_blocks)
        if WHOLE:  # eight keys at once; a row that begins anywhere has no room for that
            to = (row * num_blocks + own) * BLOCK + unit % (BLOCK // 8) * 8
            gl.store(keys + (to[:, None] + e[None, :]), key.to(gl.int16), mask=there[:, None])
        else:
            place = (start * 64 + unit * 8)[:, None] + e[None, :]
            gl.store(keys + row * length + place, key.to(gl.int16), mask=there[:, None] & (place < length))
    if BEST:
        top = gl.max(key.reshape([UNITS * 8 // BLOCK, BLOCK]), axis=1)
        b = gl.arange(0, UNITS * 8 // BLOCK, layout=top.type.layout)
        own = start * (64 // BLOCK) + b
        there = (b < tiles * (64 // BLOCK)) & (own < num_blocks)
        gl.store(best + row * num_blocks + own, top.to(gl.int16), mask=there)


def _layout(pool: BoundRecords) -> tuple[int, ...]:
    """Records of a block; words from block to block, record to record, codes to scales, scales to scales."""
    per, block, step, _, scale_step = layout_in_words(pool)
    behind = pool.scales.data_ptr() - pool.data.data_ptr()
    index = gl.uint32 if block * len(pool.data) < 1 << 32 else gl.int64
    together = 4 if block % 4 == step % 4 == 0 else 1
    return per, block, step, behind // 4, scale_step // 4, index, together


def fits(q: torch.Tensor, pool: BoundRecords, block_size: int) -> bool:
    """Whether heads, widths and the layout of the pool are those of this kernel: groups of a power of two of
    records, 64 or more, with scales behind codes in whole words.
    """
    per, block, _, scale_block, scale_step = layout_in_words(pool)
    behind = pool.scales.data_ptr() - pool.data.data_ptr()
    shape = q.shape[1:] == (HEADS.value, CHANNELS.value) and block_size in (8, 16, 32, 64)
    together = scale_block == 4 * block and 0 <= behind < scale_block and behind % 4 == scale_step % 4 == 0
    return shape and together and per % ENTRIES.value == per & (per - 1) == 0


def scan(
    q: torch.Tensor,
    w: torch.Tensor,
    pool: BoundRecords,
    table: torch.Tensor,
    counts: torch.Tensor,
    length: int,
    block_size: int,
    tile: HopperScanTile | None = None,
    blocks: torch.Tensor | None = None,
    keys: bool = True,
    best: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``index_scan.scan``, of shapes that fit.

    Raises:
        ValueError: another shape.
    """
    if not fits(q, pool, block_size):
        raise ValueError("scan: this kernel has 32 heads of 128 channels and groups of 64 records or more")
    check_table(table)
    num_rows, num_blocks, tile = len(q), ceil_div(length, block_size), tile or _TILE
    ordered_keys = torch.empty(num_rows, length if keys else 0, dtype=torch.int16, device=q.device)
    largest = torch.empty(num_rows, num_blocks if best else 0, dtype=torch.int16, device=q.device)
    tiles = ceil_div(length, ENTRIES.value)
    each = ceil_div(tiles, max(1, tile.programs * multiprocessors(q.device) // max(num_rows, 1)))
    each = min(each, TILES.value)
    warp_launch(
        _scan_kernel,
        (ceil_div(tiles, each), num_rows),
        *(q, w, words_of(pool), table, counts, counts if blocks is None else blocks),
        *(ordered_keys, largest),
        *(table.shape[1], length, num_blocks, each),
        num_warps=4,
        early=True,
        LAYOUT=_layout(pool),
        BLOCK=block_size,
        WITHIN=blocks is not None,
        WHOLE=length % block_size == 0,
        KEYS=keys,
        BEST=best,
        maxnreg=tile.registers,
    )
    return ordered_keys, largest
