"""Sparse attention on packed caches, profile fast: blocks of 128 slots, then a combination in slot order.

A first launch takes one block of slots of one row: scores of all heads, weights against the block's own
largest score, and their sum. A second takes one row and a quarter of the channels: it adds the blocks'
weighted values in ascending order, each scaled to the largest score of all. Blocks are cut by slot number,
window first, and slot numbers follow from the position of the query alone, so prefill and decode add alike;
how many rows a launch has moves no bit.

Records are decoded between memory and the matrix unit, by planes (``lanes.py``).

Legend: T rows, H heads, C channels (a multiple of 128), W window slots, K selected slots, B blocks, J = 128.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.lanes import LIFT, fp4_factors, mxfp8_factors, plane_e2m1, planes_e4m3, spread
from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch, power_of_two
from deepinfer.kernels.gpu.records import BoundRecords

SLOTS = 128
_LOWEST: tl.constexpr = tl.constexpr(-3.0e38)
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_SCRATCH_WEIGHTS = 1 << 26
"""Weights held at a time: 128 MiB; more rows run one part after the other."""


_SCORE_WARPS = 8
"""Not in the tile: the sum over a block's slots goes across warps, so their number is part of its order."""


@dataclass(frozen=True)
class AttentionTile:
    """Warps of the launch that adds values, and stages of its loads in flight; move no bit."""

    warps: int = 4
    stages: int = 2


@device
def _read(words: Ptr, slot: Block, STEP: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr) -> Block:
    """Words ``FIRST ..`` of every record, zeros for absent ones."""
    places = slot.to(tl.int64)[:, None] * STEP + (FIRST + tl.arange(0, COUNT))[None, :]
    return tl.load(words + places, (slot >= 0)[:, None], other=0)


@device
def _scales(bytes_: Ptr, slot: Block, STEP: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr) -> Block:
    places = slot.to(tl.int64)[:, None] * (4 * STEP) + (4 * FIRST + tl.arange(0, COUNT))[None, :]
    return tl.load(bytes_ + places, (slot >= 0)[:, None], other=0)


@device
def _lane_of(q: Block, PLANE: tl.constexpr) -> Block:
    """Channel ``4 i + PLANE`` of four bfloat16 in an int64."""
    return ((q >> (16 * PLANE)) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)


@device
def _near_scores(
    q: Block, records: Ptr, bytes_: Ptr, slot: Block, STEP: tl.constexpr, C: tl.constexpr
) -> Block:
    """Products [J, H] of MXFP8 records with queries int64 [C / 4, H]."""
    words, scales = _read(records, slot, STEP, 0, C // 4), _scales(bytes_, slot, STEP, C // 4, C // 32)
    by = spread(mxfp8_factors(scales), 8)
    k0, k2 = planes_e4m3(words, by, 0)
    s = tl.dot(k2, _lane_of(q, 2), tl.dot(k0, _lane_of(q, 0)))
    k1, k3 = planes_e4m3(words, by, 1)
    return tl.dot(k3, _lane_of(q, 3), tl.dot(k1, _lane_of(q, 1), s))


@device
def _far_scores(
    q: Block, records: Ptr, bytes_: Ptr, slot: Block, STEP: tl.constexpr, C: tl.constexpr
) -> Block:
    """Products [J, H] of FP4 records with queries int64 [C / 4, H]."""
    words, scales = _read(records, slot, STEP, 0, C // 8), _scales(bytes_, slot, STEP, C // 8, C // 16)
    by = spread(fp4_factors(scales), 2)
    s = tl.dot(plane_e2m1(words, by, 0), _lane_of(q, 0))
    s = tl.dot(plane_e2m1(words, by, 1), _lane_of(q, 1), s)
    s = tl.dot(plane_e2m1(words, by, 2), _lane_of(q, 2), s)
    return tl.dot(plane_e2m1(words, by, 3), _lane_of(q, 3), s)


@kernel
def _score_kernel(
    q: Ptr,
    near: Ptr,
    near_bytes: Ptr,
    near_slots: Ptr,
    far: Ptr,
    far_bytes: Ptr,
    far_slots: Ptr,
    weights: Ptr,
    largest: Ptr,
    sums: Ptr,
    scale: float,
    num_near: int,
    num_far: int,
    num_heads: int,
    C: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    NEAR_BLOCKS: tl.constexpr,
    BH: tl.constexpr,
    BJ: tl.constexpr,
) -> None:
    """NEAR, FAR: words of a record; its codes come first, its scales after them."""
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    h, j, i = tl.arange(0, BH), tl.arange(0, BJ), tl.arange(0, C // 4)
    heads = (h < num_heads)[None, :]
    queries = tl.load(q + (row * num_heads + h)[None, :] * (C // 4) + i[:, None], heads, other=0)
    if block < NEAR_BLOCKS:
        place = block * BJ + j
        slot = tl.load(near_slots + row * num_near + place, place < num_near, other=-1)
        s = _near_scores(queries, near, near_bytes, slot, NEAR, C)
        seen = slot >= 0
    else:
        place = (block - NEAR_BLOCKS) * BJ + j
        slot = tl.load(far_slots + row * num_far + place, place < num_far, other=-1)
        s = _far_scores(queries, far, far_bytes, slot, FAR, C)
        seen = slot >= 0
    s = tl.where(seen[:, None], s * scale, _LOWEST)
    top = tl.max(s, axis=0)
    p = tl.where(seen[:, None], tl.exp2(s - top[None, :]), 0.0)
    line = row * tl.num_programs(0) + block
    tl.store(largest + line * BH + h, top)
    tl.store(sums + line * BH + h, tl.sum(p, axis=0))
    tl.store(weights + line * (BH * BJ) + h[None, :] * BJ + j[:, None], p.to(tl.bfloat16))


@kernel
def _value_kernel(
    near: Ptr,
    near_bytes: Ptr,
    near_slots: Ptr,
    far: Ptr,
    far_bytes: Ptr,
    far_slots: Ptr,
    weights: Ptr,
    largest: Ptr,
    sums: Ptr,
    sink: Ptr,
    out: Ptr,
    num_near: int,
    num_far: int,
    num_heads: int,
    C: tl.constexpr,
    NEAR: tl.constexpr,
    FAR: tl.constexpr,
    NEAR_BLOCKS: tl.constexpr,
    FAR_BLOCKS: tl.constexpr,
    ALL: tl.constexpr,
    BH: tl.constexpr,
    BJ: tl.constexpr,
) -> None:
    plane, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    BLOCKS: tl.constexpr = NEAR_BLOCKS + FAR_BLOCKS
    h, j = tl.arange(0, BH), tl.arange(0, BJ)
    b = tl.arange(0, ALL)
    tops = tl.load(
        largest + (row * BLOCKS + b)[:, None] * BH + h[None, :], (b < BLOCKS)[:, None], other=_LOWEST
    )
    top = tl.max(tops, axis=0)
    acc, den = tl.zeros((BH, C // 4), tl.float32), tl.zeros((BH,), tl.float32)
    for block in range(0, NEAR_BLOCKS):
        place = block * BJ + j
        slot = tl.load(near_slots + row * num_near + place, place < num_near, other=-1)
        words = _read(near, slot, NEAR, 0, C // 4) >> (8 * plane)
        by = spread(mxfp8_factors(_scales(near_bytes, slot, NEAR, C // 4, C // 32)), 8)
        values, _ = planes_e4m3(words, by, 0)
        line = row * BLOCKS + block
        p = tl.load(weights + line * (BH * BJ) + h[:, None] * BJ + j[None, :])
        factor = tl.exp2(tl.load(largest + line * BH + h) - top)
        den = den + factor * tl.load(sums + line * BH + h)
        acc = acc + factor[:, None] * tl.dot(p, values)
    for block in range(0, FAR_BLOCKS):
        place = block * BJ + j
        slot = tl.load(far_slots + row * num_far + place, place < num_far, other=-1)
        words = _read(far, slot, FAR, 0, C // 8) >> (4 * plane)
        by = spread(fp4_factors(_scales(far_bytes, slot, FAR, C // 8, C // 16)), 2)
        values = plane_e2m1(words, by, 0)
        line = row * BLOCKS + NEAR_BLOCKS + block
        p = tl.load(weights + line * (BH * BJ) + h[:, None] * BJ + j[None, :])
        factor = tl.exp2(tl.load(largest + line * BH + h) - top)
        den = den + factor * tl.load(sums + line * BH + h)
        acc = acc + factor[:, None] * tl.dot(p, values)
    den = den + tl.exp2(tl.load(sink + h, h < num_heads, other=0.0) * _LOG2_E - top)
    share = tl.where(top > _LOWEST, LIFT / den, 0.0)[:, None]
    places = out + (row * num_heads + h)[:, None] * C + (4 * tl.arange(0, C // 4) + plane)[None, :]
    tl.store(places, (acc * share).to(tl.bfloat16), (h < num_heads)[:, None])


def layout_in_words(records: BoundRecords) -> tuple[int, ...]:
    """Records of a block; words from block to block and record to record; the same in scale bytes."""
    _, per_block, data_block, data_step, scale_block, scale_step = records.layout
    return per_block, data_block // 4, data_step // 4, scale_block, scale_step


def bytes_of(records: BoundRecords) -> torch.Tensor:
    """All bytes from the first record on."""
    data = records.data
    whole = torch.empty(0, dtype=torch.uint8, device=data.device).set_(data.untyped_storage())
    return whole[data.storage_offset() :]


def words_of(records: BoundRecords) -> torch.Tensor:
    """All bytes from the first record on, as 32-bit words."""
    whole = bytes_of(records)
    return whole[: whole.numel() // 4 * 4].view(torch.int32)


def words_of_record(records: BoundRecords) -> int:
    """Words of a record in a pool of evenly spaced ones with the scales behind the codes.

    Raises:
        ValueError: the pool is laid out otherwise.
    """
    per_block, data_block, data_step, _, scale_step = layout_in_words(records)
    behind = records.scales.data_ptr() - records.data.data_ptr() == records.data.shape[2]
    if data_block != per_block * data_step or scale_step != 4 * data_step or not behind:
        raise ValueError("attend: records must be evenly spaced, four-byte aligned, scales behind codes")
    return data_step


def attend(
    q: torch.Tensor,
    window: BoundRecords,
    window_slots: torch.Tensor,
    main: BoundRecords,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
    tile: AttentionTile = AttentionTile(),
) -> torch.Tensor:
    """One softmax over window and selected records together.

    Args:
        q: bfloat16 [T, H, C].
        window: MXFP8 records of width C, evenly spaced and four-byte aligned.
        window_slots: int32 [T, W], records in ascending position, -1 where invisible.
        main: FP4 records of width C, alike.
        main_slots: int32 [T, K], records in ascending entry, -1 where absent; K may be 0.
        sink: float32 [H].
        tile: moves no bit.

    Returns:
        bfloat16 [T, H, C]; a row without any visible slot is zero.
    """
    num_rows, num_heads, width = q.shape
    out, heads = torch.empty_like(q), max(64, power_of_two(num_heads))
    near_blocks, far_blocks = (ceil_div(s.shape[1], SLOTS) for s in (window_slots, main_slots))
    blocks = near_blocks + far_blocks
    step = max(1, _SCRATCH_WEIGHTS // (blocks * heads * SLOTS))
    for low in range(0, num_rows, step):
        part = slice(low, min(low + step, num_rows))
        rows = part.stop - low
        weights = torch.empty(rows, blocks, heads, SLOTS, dtype=torch.bfloat16, device=q.device)
        largest = torch.empty(rows, blocks, heads, dtype=torch.float32, device=q.device)
        sums = torch.empty_like(largest)
        near = (words_of(window), bytes_of(window), window_slots[part])
        far = (words_of(main), bytes_of(main), main_slots[part])
        counts = (window_slots.shape[1], main_slots.shape[1], num_heads)
        shapes = {
            "C": width,
            "NEAR": words_of_record(window),
            "FAR": words_of_record(main),
            "NEAR_BLOCKS": near_blocks,
            "BH": heads,
            "BJ": SLOTS,
        }
        scale = 2.0**32 * width**-0.5 * 1.4426950408889634
        launch(
            _score_kernel,
            (blocks, rows),
            *(q[part].view(torch.int64), *near, *far, weights, largest, sums, scale, *counts),
            num_warps=_SCORE_WARPS,
            num_stages=1,
            **shapes,
        )
        launch(
            _value_kernel,
            (4, rows),
            *(*near, *far, weights, largest, sums, sink, out[part], *counts),
            num_warps=tile.warps,
            num_stages=tile.stages,
            FAR_BLOCKS=far_blocks,
            ALL=max(2, power_of_two(blocks)),
            **shapes,
        )
    return out
