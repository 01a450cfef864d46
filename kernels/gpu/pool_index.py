"""Index scores of any shape, profile fast, over packed MXFP4 keys or decoded ones, and selection among them.

The arithmetic of ``index_scan.py``, channels in their natural order: the same bits from both kinds of keys.

Legend: T rows, Hi and Ci index heads and width, G groups of records of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import triton.language as tl

from deepinfer.kernels.gpu.index_scan import ordered16
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch, power_of_two
from deepinfer.kernels.gpu.row_sources import RowSource, rows_of
from deepinfer.kernels.gpu.select16 import select16, select_entries, select_within

_ENTRIES = 64
_SCRATCH_KEYS = 1 << 25
_WHOLE = 64
"""Rows of keys are multiples of it: kernels then store eight at once."""
"""Ordered scores held at a time: 64 MiB, whatever the number of rows."""


@kernel
def _scan_kernel(
    q: Ptr,
    w: Ptr,
    data: Ptr,
    scales: Ptr,
    where: Ptr,
    counts: Ptr,
    blocks: Ptr,
    keys: Ptr,
    best: Ptr,
    num_heads: int,
    length: int,
    num_candidates: int,
    width_of_table: int,
    KIND: tl.constexpr,
    LAYOUT: tl.constexpr,
    PAGED: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    BH: tl.constexpr,
    BLOCK: tl.constexpr,
    WITHIN: tl.constexpr,
    BEST: tl.constexpr,
    BE: tl.constexpr,
) -> None:
    """``where`` says where the entries of a row begin, or which groups hold them if ``PAGED``."""
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
        if PAGED:
            own = where + row * width_of_table + entry // LAYOUT[0]
            group, slot = tl.load(own, seen, other=0).to(tl.int64), entry % LAYOUT[0]
        else:
            group = (tl.load(where + row) + entry).to(tl.int64)
            slot = entry * 0
        k = rows_of(data, scales, group, slot, seen, KIND, LAYOUT, C, CP)
        dots = tl.dot(k, queries.to(tl.bfloat16))
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
    source: RowSource,
    where: torch.Tensor,
    counts: torch.Tensor,
    length: int,
    block_size: int,
    blocks: torch.Tensor | None = None,
    best: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ordered keys int16 [T, length], and the largest of every block or an empty tensor.

    ``where`` is [T], the first entry of each row, or [T, G], the groups of its sequence.
    """
    num_rows, num_heads, width = q.shape
    keys = torch.empty(num_rows, length, dtype=torch.int16, device=q.device)
    num_blocks = ceil_div(length, block_size) if best else 0
    largest = torch.empty(num_rows, num_blocks, dtype=torch.int16, device=q.device)
    launch(
        _scan_kernel,
        (ceil_div(length, _ENTRIES), num_rows),
        *(q, w, source.data, source.scales, where, counts, counts if blocks is None else blocks),
        *(keys, largest, num_heads, length, num_blocks if blocks is None else blocks.shape[1]),
        where.shape[1] if where.ndim == 2 else 0,
        KIND=source.kind,
        LAYOUT=source.layout,
        PAGED=where.ndim == 2,
        C=width,
        CP=max(16, power_of_two(width)),
        BH=max(16, power_of_two(num_heads)),
        BLOCK=block_size,
        WITHIN=blocks is not None,
        BEST=best,
        BE=_ENTRIES,
    )
    return keys, largest


@dataclass(frozen=True)
class Keys:
    """Index keys of the sequences of T rows, and how they are scored: any kernel set's ``Scan``.

    Attributes:
        source: decoded keys, or packed ones.
        where: int64 [T], the first entry of each row, or int32 [T, G], the groups of its sequence.
    """

    source: RowSource
    where: torch.Tensor

    def scan(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        part: slice,
        counts: torch.Tensor,
        length: int,
        block_size: int,
        blocks: torch.Tensor | None = None,
        best: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``_scan``; rows ``part``, whose ``counts`` and ``blocks`` are given."""
        where = self.where[part].contiguous()
        return _scan(q[part], w[part], self.source, where, counts, length, block_size, blocks, best)


class Scores(Protocol):
    """Index keys that can be scored, see ``Keys``."""

    def scan(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        part: slice,
        counts: torch.Tensor,
        length: int,
        block_size: int,
        blocks: torch.Tensor | None = None,
        best: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ordered keys of some rows, see ``index_scan.scan``."""


def index_select(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: Scores,
    counts: torch.Tensor,
    longest: int,
    top: int,
    num_blocks: int,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.index_select``; scores are held for as many rows at a time as the scratch takes."""
    queries, weights, num_rows = q.contiguous(), w.contiguous(), len(q)
    entries = torch.full((num_rows, top), -1, dtype=torch.int32, device=q.device)
    blocks = torch.full((num_rows, num_blocks), -1, dtype=torch.int32, device=q.device)
    longest = ceil_div(longest, _WHOLE) * _WHOLE
    step = max(1, _SCRATCH_KEYS // max(longest, 1))
    for low in range(0, num_rows if longest else 0, step):
        part = slice(low, min(low + step, num_rows))
        own = counts[part].contiguous()
        scored, best = keys.scan(queries, weights, part, own, longest, block_size, best=True)
        if num_blocks:
            blocks[part] = select16(best, own, num_blocks, block_size, newest=True)
        entries[part] = select_entries(scored, best, own, top, block_size, blocks=blocks[part])
    return entries, blocks


def index_select_within(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: Scores,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
) -> torch.Tensor:
    """See ``Ops.index_select_within``."""
    allowed, own = blocks.to(torch.int32).contiguous(), counts.contiguous()
    length, whole = allowed.shape[1] * block_size, slice(len(q))
    args = (q.contiguous(), w.contiguous(), whole, own, length, block_size, allowed)
    scored, best = keys.scan(*args, best=True)
    return select_within(scored, own, top, allowed, block_size, best=best)
