"""Sparse attention and index scores over decoded float32 pools, profile fast: what the engine's step view
hands over.

The arithmetic and the order of ``packed_attention.py`` and ``index_scan.py``: pools hold decoded cache
records, which bfloat16 represents exactly.

Legend: T rows, H heads, C latent width, W window slots, K selected slots, Hi and Ci index heads and width.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.index_scan import ordered16
from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch, power_of_two
from deepinfer.kernels.gpu.select16 import select16, select_entries, select_within

_SLOTS, _ENTRIES = 32, 64
_LOWEST: tl.constexpr = tl.constexpr(-3.0e38)
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_SCRATCH_KEYS = 1 << 25
"""Ordered scores held at a time: 64 MiB, whatever the number of rows."""


@device
def _attend_part(
    q: Block,
    pool: Ptr,
    slots: Ptr,
    row: Block,
    num_slots: int,
    scale: float,
    acc: Block,
    total: Block,
    largest: Block,
    C: tl.constexpr,
    CP: tl.constexpr,
    BJ: tl.constexpr,
) -> tuple[Block, Block, Block]:
    """Blocks of slots one after the other; sums [CP, H], [BJ, H] and largest score [H] so far."""
    c = tl.arange(0, CP)
    for first in range(0, num_slots, BJ):
        j = first + tl.arange(0, BJ)
        slot = tl.load(slots + row * num_slots + j, j < num_slots, other=-1).to(tl.int64)
        seen = (slot >= 0)[:, None]
        k = tl.load(pool + slot[:, None] * C + c[None, :], seen & (c < C)[None, :], other=0.0).to(tl.bfloat16)
        s = tl.where(seen, tl.dot(k, q) * scale, _LOWEST)
        new = tl.maximum(largest, tl.max(s, axis=0))
        p = tl.where(seen, tl.exp2(s - new[None, :]), 0.0)
        factor = tl.exp2(largest - new)[None, :]
        total, largest = total * factor + p, new
        acc = tl.dot(k.T, p.to(tl.bfloat16), acc * factor)
    return acc, total, largest


@kernel
def _attend_kernel(
    q: Ptr,
    near: Ptr,
    near_slots: Ptr,
    far: Ptr,
    far_slots: Ptr,
    sink: Ptr,
    out: Ptr,
    scale: float,
    num_near: int,
    num_far: int,
    num_heads: int,
    C: tl.constexpr,
    CP: tl.constexpr,
    BH: tl.constexpr,
    BJ: tl.constexpr,
) -> None:
    row, h = tl.program_id(1).to(tl.int64), tl.program_id(0) * BH + tl.arange(0, BH)
    c = tl.arange(0, CP)
    places = (row * num_heads + h)[None, :] * C + c[:, None]
    inside = (h < num_heads)[None, :] & (c < C)[:, None]
    queries = tl.load(q + places, inside, other=0.0).to(tl.bfloat16)
    acc, total = tl.zeros((CP, BH), tl.float32), tl.zeros((BJ, BH), tl.float32)
    largest = tl.full((BH,), _LOWEST, tl.float32)
    acc, total, largest = _attend_part(
        queries, near, near_slots, row, num_near, scale, acc, total, largest, C, CP, BJ
    )
    acc, total, largest = _attend_part(
        queries, far, far_slots, row, num_far, scale, acc, total, largest, C, CP, BJ
    )
    raw = tl.load(sink + h, h < num_heads, other=0.0) * _LOG2_E
    den = tl.sum(total, axis=0) + tl.exp2(raw - largest)
    share = tl.where(largest > _LOWEST, 1.0 / den, 0.0)[None, :]
    tl.store(out + places, rounded(acc * share, True), inside)


def sparse_attention(
    q: torch.Tensor,
    window: torch.Tensor,
    window_slots: torch.Tensor,
    main: torch.Tensor,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
) -> torch.Tensor:
    """See ``Ops.sparse_attention``: float32 [T, H, C] of bfloat16 values in and out, pools float32 [P, C]."""
    queries = q.contiguous()
    out = torch.empty_like(queries)
    num_rows, num_heads, width = queries.shape
    heads = 16 if num_heads <= 16 else 32
    near, far = window_slots.contiguous(), main_slots.contiguous()
    launch(
        _attend_kernel,
        (ceil_div(num_heads, heads), num_rows),
        *(queries, window.contiguous(), near, main.contiguous(), far, sink, out),
        *(width**-0.5 * 1.4426950408889634, near.shape[1], far.shape[1], num_heads),
        num_warps=4 if width <= 128 else 8,
        C=width,
        CP=max(16, power_of_two(width)),
        BH=heads,
        BJ=_SLOTS,
    )
    return out


@kernel
def _scan_kernel(
    q: Ptr,
    w: Ptr,
    pool: Ptr,
    base: Ptr,
    counts: Ptr,
    blocks: Ptr,
    keys: Ptr,
    best: Ptr,
    num_heads: int,
    length: int,
    num_candidates: int,
    C: tl.constexpr,
    CP: tl.constexpr,
    BH: tl.constexpr,
    BLOCK: tl.constexpr,
    WITHIN: tl.constexpr,
    BEST: tl.constexpr,
    BE: tl.constexpr,
) -> None:
    row, first = tl.program_id(1).to(tl.int64), tl.program_id(0) * BE
    count = tl.load(counts + row).to(tl.int32)
    if (WITHIN != 0) | (first < count):
        h, c = tl.arange(0, BH), tl.arange(0, CP)
        inside = (h < num_heads)[None, :] & (c < C)[:, None]
        queries = tl.load(q + (row * num_heads + h)[None, :] * C + c[:, None], inside, other=0.0)
        weight = tl.load(w + row * num_heads + h, h < num_heads, other=0.0).to(tl.bfloat16)[None, :]
        place = first + tl.arange(0, BE)
        entry = place
        seen = place < length
        if WITHIN:
            block = tl.load(blocks + row * num_candidates + place // BLOCK, seen, other=-1)
            entry = block * BLOCK + place % BLOCK
            seen = seen & (block >= 0)
        seen = seen & (entry < count)
        slot = tl.load(base + row) + entry
        k = tl.load(pool + slot[:, None] * C + c[None, :], seen[:, None] & (c < C)[None, :], other=0.0)
        dots = tl.dot(k.to(tl.bfloat16), queries.to(tl.bfloat16))
        positive = tl.maximum(dots, 0.0).to(tl.bfloat16)
        score = tl.sum((positive * weight).to(tl.float32), axis=1)
        key = tl.where(seen, ordered16(score), -32768)
        tl.store(keys + row * length + place, key.to(tl.int16), place < length)
        if BEST:
            largest = tl.max(key.to(tl.int32).reshape(BE // BLOCK, BLOCK), axis=1)
            b = first // BLOCK + tl.arange(0, BE // BLOCK)
            tl.store(best + row * num_candidates + b, largest.to(tl.int16), b < num_candidates)


def _scan(
    q: torch.Tensor,
    w: torch.Tensor,
    pool: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    length: int,
    block_size: int,
    blocks: torch.Tensor | None = None,
    best: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ordered keys int16 [T, length], and the largest of every block or an empty tensor."""
    num_rows, num_heads, width = q.shape
    keys = torch.empty(num_rows, length, dtype=torch.int16, device=q.device)
    num_blocks = ceil_div(length, block_size) if best else 0
    largest = torch.empty(num_rows, num_blocks, dtype=torch.int16, device=q.device)
    launch(
        _scan_kernel,
        (ceil_div(length, _ENTRIES), num_rows),
        *(q, w, pool, base, counts, counts if blocks is None else blocks, keys, largest),
        *(num_heads, length, num_blocks if blocks is None else blocks.shape[1]),
        C=width,
        CP=max(16, power_of_two(width)),
        BH=max(16, power_of_two(num_heads)),
        BLOCK=block_size,
        WITHIN=blocks is not None,
        BEST=best,
        BE=_ENTRIES,
    )
    return keys, largest


def index_select(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    longest: int,
    top: int,
    num_blocks: int,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.index_select``; scores are held for as many rows at a time as the scratch takes."""
    queries, weights, pool = q.contiguous(), w.contiguous(), keys.contiguous()
    num_rows = len(q)
    entries = torch.full((num_rows, top), -1, dtype=torch.int32, device=q.device)
    blocks = torch.full((num_rows, num_blocks), -1, dtype=torch.int32, device=q.device)
    step = max(1, _SCRATCH_KEYS // max(longest, 1))
    for low in range(0, num_rows if longest else 0, step):
        part = slice(low, min(low + step, num_rows))
        own = counts[part].contiguous()
        scored, best = _scan(
            queries[part],
            weights[part],
            pool,
            base[part].contiguous(),
            own,
            longest,
            block_size,
            best=True,
        )
        if num_blocks:
            blocks[part] = select16(best, own, num_blocks, block_size, newest=True)
        entries[part] = select_entries(scored, best, own, top, block_size, blocks=blocks[part])
    return entries, blocks


def index_select_within(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
) -> torch.Tensor:
    """See ``Ops.index_select_within``."""
    allowed, own = blocks.to(torch.int32).contiguous(), counts.contiguous()
    length = allowed.shape[1] * block_size
    scored, _ = _scan(
        *(q.contiguous(), w.contiguous(), keys.contiguous(), base.contiguous(), own, length, block_size),
        blocks=allowed,
    )
    return select_within(scored, own, top, allowed, block_size)
