"""Sparse attention of any width, profile fast, over packed cache records or decoded float32 pools.

Both give the same bits: pools hold decoded records, which bfloat16 represents exactly, and the order of a sum
is that of the slots, 32 at a time.

Legend: T rows, H heads, C latent width, W window slots, K selected slots, G groups of records of a sequence.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.attention_steps import LOWEST, attend_ahead, attend_part, places_of
from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import (
    Ptr,
    after_launches_before,
    ceil_div,
    kernel,
    launch,
    power_of_two,
)
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.rope import angles_of, turned_channels
from deepinfer.kernels.gpu.row_sources import RowSource, codes_of, floats, from_nowhere, packed
from deepinfer.kernels.operands import PagedRecords, Rotary

_SLOTS = 32
_STAGES, _RECORD_STAGES = 3, 1
"""Loads in flight, by kind of rows; move no bit. Asking for codes ahead cost more than waiting (measured)."""
_FEW, _WIDTH_AHEAD = 128, 128
"""Programs that a chip runs at once, and the width of rows that they have registers for to ask for two blocks
at a time: with few programs nothing else hides how long a load takes."""
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@kernel
def _attend_kernel(
    q: Ptr,
    near: Ptr,
    near_scales: Ptr,
    near_slots: Ptr,
    far: Ptr,
    far_scales: Ptr,
    far_slots: Ptr,
    table: Ptr,
    sink: Ptr,
    cos: Ptr,
    sin: Ptr,
    positions: Ptr,
    out: Ptr,
    scale: float,
    num_near: int,
    num_far: int,
    num_heads: int,
    width_of_table: int,
    num_pairs: int,
    NEAR: tl.constexpr,
    NEAR_LAYOUT: tl.constexpr,
    FAR: tl.constexpr,
    FAR_LAYOUT: tl.constexpr,
    PAGED: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    BH: tl.constexpr,
    BJ: tl.constexpr,
    TURNED: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """TURNED: queries are rotated as they come in, and what they find back as it goes out.

    AHEAD: rows are asked for a block before they are used, the first ones first of all; moves no bit.
    """
    if EARLY:
        after_launches_before()
    row, h = tl.program_id(1).to(tl.int64), tl.program_id(0) * BH + tl.arange(0, BH)
    groups, own_near, own_far = (
        table + row * width_of_table,
        near_slots + row * num_near,
        far_slots + row * num_far,
    )
    if AHEAD:
        g0, n0, is_near = places_of(own_near, groups, 0, num_near, NEAR_LAYOUT, False, BJ)
        g1, n1, near_comes = places_of(own_near, groups, BJ, num_near, NEAR_LAYOUT, False, BJ)
        h0, f0, is_far = places_of(own_far, groups, 0, num_far, FAR_LAYOUT, PAGED, BJ)
        h1, f1, far_comes = places_of(own_far, groups, BJ, num_far, FAR_LAYOUT, PAGED, BJ)
        near_codes, near_bytes = codes_of(near, near_scales, g0, n0, is_near, NEAR, NEAR_LAYOUT, C, CP)
        far_codes, far_bytes = codes_of(far, far_scales, h0, f0, is_far, FAR, FAR_LAYOUT, C, CP)
    c = tl.arange(0, CP)
    places = (row * num_heads + h)[None, :] * C + c[:, None]
    inside = (h < num_heads)[None, :] & (c < C)[:, None]
    queries = tl.load(q + places, inside, other=0.0)
    if TURNED:
        cosine, sine, turns = angles_of(cos, sin, tl.load(positions + row), num_pairs, C, CP)
        # the flags would widen the steps of the product below, and so change its order
        queries = from_nowhere(turned_channels(queries, cosine, sine, turns).to(tl.bfloat16))
    queries = queries.to(tl.bfloat16)
    acc, total = tl.zeros((CP, BH), tl.float32), tl.zeros((BJ, BH), tl.float32)
    largest = tl.full((BH,), LOWEST, tl.float32)
    if AHEAD:
        acc, total, largest = attend_ahead(
            *(queries, near_codes, near_bytes, is_near, g1, n1, near_comes, near, near_scales, own_near),
            *(groups, num_near, scale, acc, total, largest, NEAR, NEAR_LAYOUT, False, C, CP, BJ),
        )
        acc, total, largest = attend_ahead(
            *(queries, far_codes, far_bytes, is_far, h1, f1, far_comes, far, far_scales, own_far),
            *(groups, num_far, scale, acc, total, largest, FAR, FAR_LAYOUT, PAGED, C, CP, BJ),
        )
    else:
        acc, total, largest = attend_part(
            *(queries, near, near_scales, own_near, groups, num_near, scale, acc, total, largest),
            *(NEAR, NEAR_LAYOUT, False, C, CP, BJ),
        )
        acc, total, largest = attend_part(
            *(queries, far, far_scales, own_far, groups, num_far, scale, acc, total, largest),
            *(FAR, FAR_LAYOUT, PAGED, C, CP, BJ),
        )
    raw = tl.load(sink + h, h < num_heads, other=0.0) * _LOG2_E
    den = tl.sum(total, axis=0) + tl.exp2(raw - largest)
    share = tl.where(largest > LOWEST, 1.0 / den, 0.0)[None, :]
    found = rounded(acc * share, True)
    if TURNED:
        found = turned_channels(found, cosine, -sine, turns)
    tl.store(out + places, found, inside)


def sparse_attention(
    q: torch.Tensor,
    window: torch.Tensor,
    window_slots: torch.Tensor,
    main: torch.Tensor,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
    rotary: Rotary | None = None,
) -> torch.Tensor:
    """See ``Ops.sparse_attention``: float32 [T, H, C] of bfloat16 values in and out, pools float32 [P, C].

    ``rotary`` rotates ``q`` before, and the result back, to the bits of ``rotate_``.
    """
    return _attend(q, floats(window), window_slots, floats(main), main_slots, None, sink, _STAGES, rotary)


def attend_records(
    q: torch.Tensor,
    window: BoundRecords,
    window_slots: torch.Tensor,
    pages: PagedRecords,
    entries: torch.Tensor,
    sink: torch.Tensor,
    stages: int = _RECORD_STAGES,
    rotary: Rotary | None = None,
) -> torch.Tensor:
    """See ``Ops.attend_records``; the bits of ``sparse_attention`` over what the records decode to."""
    near, far = packed(window), packed(pages.records)
    return _attend(q, near, window_slots, far, entries, pages.table, sink, stages, rotary)


def _attend(
    q: torch.Tensor,
    near: RowSource,
    near_slots: torch.Tensor,
    far: RowSource,
    far_slots: torch.Tensor,
    table: torch.Tensor | None,
    sink: torch.Tensor,
    stages: int,
    rotary: Rotary | None,
) -> torch.Tensor:
    queries, slots, chosen = q.contiguous(), near_slots.contiguous(), far_slots.contiguous()
    out = torch.empty_like(queries)
    num_rows, num_heads, width = queries.shape
    assert rotary is None or width % 2 == 0, "channels rotate in pairs"
    heads = 16 if num_heads <= 16 else 32
    grid = (ceil_div(num_heads, heads), num_rows)
    ahead = grid[0] * num_rows <= _FEW and width <= _WIDTH_AHEAD
    turn = (sink, sink, sink) if rotary is None else (rotary.cos, rotary.sin, rotary.positions)
    launch(
        _attend_kernel,
        grid,
        *(queries, near.data, near.scales, slots, far.data, far.scales, chosen),
        *(chosen if table is None else table, sink, *turn, out),
        *(width**-0.5 * 1.4426950408889634, slots.shape[1], chosen.shape[1], num_heads),
        *(0 if table is None else table.shape[1], 0 if rotary is None else rotary.cos.shape[1]),
        num_warps=4 if width <= 128 else 8,
        num_stages=1 if ahead else stages,
        NEAR=near.kind,
        NEAR_LAYOUT=near.layout,
        FAR=far.kind,
        FAR_LAYOUT=far.layout,
        PAGED=table is not None,
        C=width,
        CP=max(16, power_of_two(width)),
        BH=heads,
        BJ=_SLOTS,
        TURNED=rotary is not None,
        AHEAD=ahead,
    )
    return out
