"""What a step begins with, a launch each: streams of its rows, and the window records that they see.

Legend: T rows, S residual streams, D model width, W window slots, H records of histories, R sequences, B
cache blocks of a sequence.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import (
    Ptr,
    after_launches_before,
    ceil_div,
    kernel,
    launch,
    power_of_two,
)

_BLOCK = 256


@kernel
def _streams_kernel(
    embedding: Ptr,
    ids: Ptr,
    streams: Ptr,
    pre: Ptr,
    width: int,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(embedding + tl.load(ids + row) * width + d, d < width, other=0.0)
    for n in tl.static_range(S):
        tl.store(streams + (row * S + n) * width + d, value, d < width)
    n = tl.arange(0, S)
    tl.store(pre + row * S + n, (n == 0).to(tl.float32), (n >= 0) & (tl.program_id(1) == 0))


@kernel
def _places_kernel(
    history: Ptr,
    ring: Ptr,
    windows: Ptr,
    tables: Ptr,
    owner: Ptr,
    seen: Ptr,
    table: Ptr,
    num_history: int,
    size: int,
    num_blocks: int,
    table_stride: int,
    WINDOW: tl.constexpr,
    BLOCKS: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One row."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, WINDOW)
    place = tl.load(windows + row * size + w, w < size, other=-1)
    is_history = (place >= 0) & (place < num_history)
    old = tl.load(history + place, is_history, other=-1)
    own = tl.load(ring + (place - num_history), place >= num_history, other=-1)
    tl.store(seen + row * size + w, tl.where(is_history, old, own).to(tl.int32), w < size)
    line, out = tables + tl.load(owner + row) * table_stride, table + row * num_blocks
    for first in range(0, num_blocks, BLOCKS):
        b = first + tl.arange(0, BLOCKS)
        tl.store(out + b, tl.load(line + b, b < num_blocks).to(tl.int32), b < num_blocks)


def first_streams(
    embedding: torch.Tensor, ids: torch.Tensor, num_streams: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.first_streams``: float32 [V, D], int64 [T] -> [T, S, D] and [T, S]; S is a power of two."""
    width = embedding.shape[1]
    streams = embedding.new_empty(len(ids), num_streams, width)
    pre = embedding.new_empty(len(ids), num_streams)
    grid = (len(ids), ceil_div(width, _BLOCK))
    arguments = (embedding.contiguous(), ids.contiguous(), streams, pre, width)
    launch(_streams_kernel, grid, *arguments, S=num_streams, BLOCK=_BLOCK)
    return streams, pre


def window_places(
    history: torch.Tensor,
    ring: torch.Tensor,
    windows: torch.Tensor,
    tables: torch.Tensor,
    owner: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.window_places``: int64 [H], [T], [T, W], [R, B], [T] -> int32 [T, W] and [T, B]."""
    (num_rows, size), num_blocks = windows.shape, tables.shape[1]
    lines = tables if tables.stride(1) == 1 else tables.contiguous()
    seen = torch.empty(num_rows, size, dtype=torch.int32, device=windows.device)
    table = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=windows.device)
    launch(
        _places_kernel,
        (num_rows,),
        *(history.contiguous(), ring.contiguous(), windows.contiguous(), lines, owner.contiguous()),
        *(seen, table, len(history), size, num_blocks, lines.stride(0)),
        WINDOW=power_of_two(size),
        BLOCKS=min(_BLOCK, power_of_two(num_blocks)),
    )
    return seen, table
