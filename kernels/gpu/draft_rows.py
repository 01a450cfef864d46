"""Rows of drafted blocks in one launch; see ``draft_chains.draft_rows``.

Legend: A blocks of B rows, S residual streams, D model width, W window.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.draft_operands import BlockShape, DraftRows
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch, power_of_two

_TILE = 1024


@kernel
def _rows_kernel(
    golden: Ptr,
    positions: Ptr,
    slots: Ptr,
    lows: Ptr,
    embedding: Ptr,
    streams: Ptr,
    pre: Ptr,
    at: Ptr,
    records: Ptr,
    places: Ptr,
    own: Ptr,
    width: int,
    noise: int,
    ring: int,
    SIZE: tl.constexpr,
    STREAMS: tl.constexpr,
    WINDOW: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One tile of one row; the first tile writes its places too."""
    if EARLY:
        after_launches_before()
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block, number = row // SIZE, row % SIZE
    token = tl.where(number == 0, tl.load(golden + block), noise)
    column = tile * TILE + tl.arange(0, TILE)
    values = tl.load(embedding + token * width + column, column < width, other=0.0)
    for stream in tl.static_range(STREAMS):
        tl.store(streams + (row * STREAMS + stream) * width + column, values, column < width)
    if tile == 0:
        position = tl.load(positions + block)
        tl.store(at + row, position + number)
        for stream in tl.static_range(STREAMS):
            tl.store(pre + row * STREAMS + stream, 1.0 if stream == 0 else 0.0)
        for k in tl.static_range(SIZE):
            tl.store(own + row * SIZE + k, block * SIZE + k)
        lane = tl.arange(0, LANES)
        seen = position - WINDOW + lane
        visible, inside = seen >= tl.load(lows + block), lane < WINDOW
        tl.store(places + row * WINDOW + lane, tl.where(visible, block * WINDOW + lane, -1), inside)
        # a floored remainder, though no position below 0 is ever visible
        record = tl.load(slots + block) * ring + (seen % ring + ring) % ring
        tl.store(records + block * WINDOW + lane, tl.where(visible, record, -1), inside & (number == 0))


def draft_rows(
    golden: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    low: torch.Tensor,
    embedding: torch.Tensor,
    shape: BlockShape,
    ring: int,
) -> DraftRows:
    """See ``Ops.draft_rows``."""
    count, size, window, width = len(golden), shape.size, shape.window, embedding.shape[1]
    rows, place = count * size, golden.device
    found = DraftRows(
        streams=torch.empty(rows, shape.num_streams, width, device=place),
        pre=torch.empty(rows, shape.num_streams, device=place),
        positions=torch.empty(rows, dtype=torch.int64, device=place),
        records=torch.empty(count * window, dtype=torch.int64, device=place),
        places=torch.empty(rows, window, dtype=torch.int64, device=place),
        own=torch.empty(rows, size, dtype=torch.int64, device=place),
    )
    launch(
        _rows_kernel,
        (rows, ceil_div(width, _TILE)),
        *(golden.contiguous(), positions.contiguous(), slots.contiguous(), low.contiguous(), embedding),
        *(found.streams, found.pre, found.positions, found.records, found.places, found.own),
        *(width, shape.noise_token_id, ring),
        SIZE=size,
        STREAMS=shape.num_streams,
        WINDOW=window,
        LANES=power_of_two(window),
        TILE=_TILE,
    )
    return found
