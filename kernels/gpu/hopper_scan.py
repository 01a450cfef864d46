"""Index scores of packed MXFP4 keys for Hopper chips, profile fast: products in eight bits.

The codes of a group of 32 channels are multiplied as they are (``hopper_keys.py``); the scales come in
afterwards, a power of two each, in ascending order of groups and in float32. Queries are MXFP4 numbers too:
e5m2 holds those of a head, and a power of two of the head goes into its weight. So a score is rounded where
``index_scan.py`` rounds (the product, the weighted product, the sum over heads), and hardly before.

Legend: T rows, Hi = 32 index heads, Ci = 128 channels, Nb candidate blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma_wait,
)

from deepinfer.kernels.gpu.capability import multiprocessors
from deepinfer.kernels.gpu.hopper_keys import (
    CHANNELS,
    CODES,
    EIGHTS,
    ENTRIES,
    HEADS,
    SCORES,
    factor,
    group_dots,
    left_operand,
    load_tile,
    of_rows,
    sum_of_heads,
    weighted,
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

QUERIES: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0]],
        [],
        [32, 128],
    )
)


@dataclass(frozen=True)
class HopperScanTile:
    """Programs that a multiprocessor holds, and registers of a thread that let it; moves no bit."""

    programs: int
    registers: int


_ALL, _WITHIN = HopperScanTile(24, 80), HopperScanTile(4, 112)


@warp_device
def _candidates(
    blocks: Block, row: Block, first: Block, end: Block, num_candidates: Block, BLOCK: gl.constexpr
) -> Block:
    """Candidate block of every place of a tile, -1 for none."""
    place = first + gl.arange(0, ENTRIES, layout=gl.SliceLayout(1, CODES))
    at = place.to(gl.uint32) // BLOCK
    return gl.load(blocks + row * num_candidates + at, mask=place < end, other=-1)


@warp_device
def _group_of(
    line: Block,
    first: Block,
    block: Block,
    end: Block,
    PER: gl.constexpr,
    BLOCK: gl.constexpr,
    WITHIN: gl.constexpr,
) -> Block:
    """Group of the pool, of ``PER`` records, that holds a tile, or each candidate."""
    if WITHIN:
        group = gl.load(line + gl.maximum(block, 0).to(gl.uint32) // (PER // BLOCK))
    else:
        group = gl.load(line + gl.minimum(first, end - 1) // PER)
    return group


@warp_device
def _place_in(
    first: Block, block: Block, PER: gl.constexpr, BLOCK: gl.constexpr, WITHIN: gl.constexpr
) -> Block:
    """Which records of these groups."""
    r = gl.arange(0, ENTRIES, layout=gl.SliceLayout(1, CODES))
    if WITHIN:
        own = (gl.maximum(block, 0) & (PER // BLOCK - 1)) * BLOCK + (r & (BLOCK - 1))
    else:
        own = first % PER + r
    return own


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
    num_candidates: Block,
    num_tiles: Block,
    LAYOUT: gl.constexpr,
    BLOCK: gl.constexpr,
    WITHIN: gl.constexpr,
    BEST: gl.constexpr,
) -> None:
    next_may_begin()
    after_launches_before()
    row = gl.program_id(1).to(gl.int64)
    count = gl.load(counts + row).to(gl.int32)
    start = gl.program_id(0) * (ENTRIES * num_tiles)
    end = gl.minimum(start + ENTRIES * num_tiles, length)
    if not WITHIN:
        end = gl.minimum(end, count)
    if start < end:
        # queries: of each head, times the power of two that brings the largest near 2**13
        h = gl.arange(0, 32, layout=gl.SliceLayout(1, QUERIES))
        c = gl.arange(0, 128, layout=gl.SliceLayout(0, QUERIES))
        own_q = gl.load(q + (row * HEADS + h)[:, None] * CHANNELS + c[None, :]).to(gl.float32)
        largest = gl.max(gl.abs(own_q), axis=1)
        exponent = (largest.to(gl.int32, bitcast=True) >> 23) & 255
        exponent = gl.where(exponent == 0, 127, gl.minimum(gl.maximum(exponent, 14), 230))
        up = ((127 + 127 + 12 - exponent) << 23).to(gl.float32, bitcast=True)
        eight = (own_q * up[:, None]).to(gl.float8e5)
        queries = gl.allocate_shared_memory(gl.float8e5, [4, 32, 32], EIGHTS)
        powers = gl.allocate_shared_memory(gl.float32, [32], gl.SwizzledSharedLayout(1, 1, 1, [0]))
        by_group = eight.reshape([32, 4, 16, 2]).permute([0, 3, 2, 1]).reshape([32, 32, 2, 2])
        evens, odds = gl.split(by_group)
        g0, g2 = gl.split(evens)
        g1, g3 = gl.split(odds)
        queries.index(0).store(g0)
        queries.index(1).store(g1)
        queries.index(2).store(g2)
        queries.index(3).store(g3)
        down = ((exponent - 12 + 6) << 23).to(gl.float32, bitcast=True)
        powers.store(down)
        fence_async_shared()
        gl.thread_barrier()
        head = gl.arange(0, 32, layout=gl.SliceLayout(0, SCORES))
        weight = gl.load(w + row * HEADS + head).to(gl.float32) * powers.load(gl.SliceLayout(0, SCORES))
        weight = weight.to(gl.bfloat16)[None, :].broadcast_to([64, 32])

        r = gl.arange(0, ENTRIES, layout=gl.SliceLayout(1, CODES))
        line, own_keys = table + row * width_of_table, keys + row * length
        block, after = r, r
        if WITHIN:
            block = _candidates(blocks, row, start, end, num_candidates, BLOCK)
            after = _candidates(blocks, row, start + ENTRIES, end, num_candidates, BLOCK)
        group = _group_of(line, start, block, end, LAYOUT[0], BLOCK, WITHIN)
        own = _place_in(start, block, LAYOUT[0], BLOCK, WITHIN)
        c0, c1, c2, c3, s = load_tile(data, group, own, LAYOUT, WITHIN)
        group = _group_of(line, start + ENTRIES, after, end, LAYOUT[0], BLOCK, WITHIN)
        for first in range(start, end, ENTRIES):
            # two groups of channels at a time: four would not leave registers for enough programs; when the
            # next tile is asked for differs, so that the compiler keeps both products in flight
            a0, a1 = left_operand(c0), left_operand(c1)
            d0, d1 = group_dots(a0, queries, 0), group_dots(a1, queries, 1)
            power = gl.convert_layout(s, gl.SliceLayout(1, SCORES))
            if WITHIN:
                o2, o3 = c2, c3
                now = of_rows(block)
                block = after
                own = _place_in(first + ENTRIES, block, LAYOUT[0], BLOCK, WITHIN)
                c0, c1, c2, c3, s = load_tile(data, group, own, LAYOUT, WITHIN)
                after = _candidates(blocks, row, first + 2 * ENTRIES, end, num_candidates, BLOCK)
                group = _group_of(line, first + 2 * ENTRIES, after, end, LAYOUT[0], BLOCK, WITHIN)
                d0, d1 = warpgroup_mma_wait(0, deps=(d0, d1))
                a2, a3 = left_operand(o2), left_operand(o3)
                d2, d3 = group_dots(a2, queries, 2), group_dots(a3, queries, 3)
            else:
                a2, a3 = left_operand(c2), left_operand(c3)
                d0, d1 = warpgroup_mma_wait(0, deps=(d0, d1))
                d2, d3 = group_dots(a2, queries, 2), group_dots(a3, queries, 3)
            dots = d0 * factor(power, 0)
            dots = gl.fma(d1, factor(power, 1).broadcast_to([64, 32]), dots)
            d2, d3 = warpgroup_mma_wait(0, deps=(d2, d3))
            if not WITHIN:
                own = _place_in(first + ENTRIES, block, LAYOUT[0], BLOCK, WITHIN)
                c0, c1, c2, c3, s = load_tile(data, group, own, LAYOUT, WITHIN)
                group = _group_of(line, first + 2 * ENTRIES, block, end, LAYOUT[0], BLOCK, WITHIN)
            dots = gl.fma(d2, factor(power, 2).broadcast_to([64, 32]), dots)
            dots = gl.fma(d3, factor(power, 3).broadcast_to([64, 32]), dots)
            score = sum_of_heads(weighted(dots, weight))
            bits = (score + 0.0).to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32)
            key = bits ^ ((bits >> 15) & 0x7FFF)
            copy = gl.arange(0, 2, layout=gl.SliceLayout(0, key.type.layout))[None, :]
            place = gl.arange(0, ENTRIES, layout=gl.SliceLayout(1, key.type.layout))[:, None]
            place, copy = (first + place).broadcast_to([64, 2]), copy.broadcast_to([64, 2])
            if WITHIN:
                seen = (now >= 0) & (now * BLOCK + (place & (BLOCK - 1)) < count)
            else:
                seen = place < end
            key = gl.where(seen, key, -32768)
            gl.store(own_keys + place.to(gl.uint32), key.to(gl.int16), mask=(place < length) & (copy == 0))
            if BEST:
                top = gl.max(key.reshape([ENTRIES // BLOCK, BLOCK, 2]), axis=1)
                b = gl.arange(0, ENTRIES // BLOCK, layout=gl.SliceLayout(1, top.type.layout))[:, None]
                copy = gl.arange(0, 2, layout=gl.SliceLayout(0, top.type.layout))[None, :]
                b = (first // BLOCK + b).broadcast_to([ENTRIES // BLOCK, 2])
                copy = copy.broadcast_to([ENTRIES // BLOCK, 2])
                to = best + row * num_candidates + b
                gl.store(to, top.to(gl.int16), mask=(b < num_candidates) & (copy == 0))


def _layout(pool: BoundRecords) -> tuple[int, ...]:
    """Records of a block; words from block to block, record to record, codes to scales, scales to scales."""
    per, block, step, _, scale_step = layout_in_words(pool)
    behind = pool.scales.data_ptr() - pool.data.data_ptr()
    index = gl.uint32 if block * len(pool.data) < 1 << 32 else gl.int64
    return per, block, step, behind // 4, scale_step // 4, index


def fits(q: torch.Tensor, pool: BoundRecords, block_size: int) -> bool:
    """Whether heads, widths and the layout of the pool are those of this kernel: groups of a power of two of
    records, 64 or more, with scales behind codes in whole words.
    """
    per, block, _, scale_block, scale_step = layout_in_words(pool)
    behind = pool.scales.data_ptr() - pool.data.data_ptr()
    shape = q.shape[1:] == (HEADS.value, CHANNELS.value) and ENTRIES.value % block_size == 0
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
    best: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``index_scan.scan``, of shapes that fit.

    Raises:
        ValueError: another shape.
    """
    if not fits(q, pool, block_size):
        raise ValueError("scan: this kernel has 32 heads of 128 channels and groups of 64 records or more")
    check_table(table)
    num_rows, tile = len(q), tile or (_ALL if blocks is None else _WITHIN)
    keys = torch.empty(num_rows, length, dtype=torch.int16, device=q.device)
    num_blocks = ceil_div(length, block_size) if best else 0
    largest = torch.empty(num_rows, num_blocks, dtype=torch.int16, device=q.device)
    constants: dict[str, Any] = {
        "LAYOUT": _layout(pool),
        "BLOCK": block_size,
        "WITHIN": blocks is not None,
        "BEST": best,
        "maxnreg": tile.registers,
    }
    tiles = ceil_div(length, ENTRIES.value)
    tiles_each = ceil_div(tiles, max(1, tile.programs * multiprocessors(q.device) // max(num_rows, 1)))
    warp_launch(
        _scan_kernel,
        (ceil_div(tiles, tiles_each), num_rows),
        *(q, w, words_of(pool), table, counts, counts if blocks is None else blocks, keys, largest),
        *(table.shape[1], length, num_blocks if blocks is None else blocks.shape[1], tiles_each),
        num_warps=4,
        early=True,
        **constants,
    )
    return keys, largest
