"""Index scores of any shape, profile fast, over packed MXFP4 keys or decoded ones.

The arithmetic of ``index_scan.py``, channels in their natural order: the same bits from both kinds of keys.

Legend: T rows, Hi and Ci index heads and width, G groups of records of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.index_scan import ordered16
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch, power_of_two
from deepinfer.kernels.gpu.row_sources import RowSource, rows_of

_ENTRIES = 64


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
    KEYS: tl.constexpr,
    BEST: tl.constexpr,
    BE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """``where`` says where the entries of a row begin, or which groups hold them if ``PAGED``."""
    if EARLY:
        after_launches_before()
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
        if KEYS:
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
    blocks: torch.Tensor | None,
    keys: bool,
    best: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``index_scan.scan``.

    ``where`` is [T], the first entry of each row, or [T, G], the groups of its sequence.
    """
    num_rows, num_heads, width = q.shape
    ordered = torch.empty(num_rows, length if keys else 0, dtype=torch.int16, device=q.device)
    num_blocks = ceil_div(length, block_size) if best else 0
    largest = torch.empty(num_rows, num_blocks, dtype=torch.int16, device=q.device)
    launch(
        _scan_kernel,
        (ceil_div(length, _ENTRIES), num_rows),
        *(q, w, source.data, source.scales, where, counts, counts if blocks is None else blocks),
        *(ordered, largest, num_heads, length, num_blocks if blocks is None else blocks.shape[1]),
        where.shape[1] if where.ndim == 2 else 0,
        KIND=source.kind,
        LAYOUT=source.layout,
        PAGED=where.ndim == 2,
        C=width,
        CP=max(16, power_of_two(width)),
        BH=max(16, power_of_two(num_heads)),
        BLOCK=block_size,
        WITHIN=blocks is not None,
        KEYS=keys,
        BEST=best,
        BE=_ENTRIES,
    )
    return ordered, largest


@dataclass(frozen=True)
class Keys:
    """Index keys of the sequences of T rows, and how they are scored, see ``two_level.Scores``.

    Attributes:
        source: decoded keys, or packed ones.
        where: int64 [T], the first entry of each row, or int32 [T, G], the groups of its sequence.
    """

    source: RowSource
    where: torch.Tensor

    @property
    def per_group(self) -> int:
        """See ``Scores``."""
        per: int = self.source.layout[0] if self.where.ndim == 2 else 1
        return per

    def scan(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        part: slice,
        first: int,
        counts: torch.Tensor,
        length: int,
        block_size: int,
        blocks: torch.Tensor | None = None,
        keys: bool = True,
        best: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Scores``."""
        where = self.where[part]
        where = where + first if where.ndim == 1 else where[:, first // self.per_group :]
        own = where.contiguous(), counts - first if first else counts
        return _scan(q[part], w[part], self.source, *own, length, block_size, blocks, keys, best)
