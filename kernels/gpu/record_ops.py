"""Attention and index selection on packed records as the engine asks: which kernel a shape gets.

The released widths have kernels of their own (``packed_ops``), whose order of sums is theirs; records of
every other shape are decoded in registers by the kernels that also take decoded pools, and have their bits.
What decides are widths, formats and the chip, never the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu import packed_ops, pool_attention, two_level
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, kernel, launch, power_of_two
from deepinfer.kernels.gpu.pool_index import Keys
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.row_sources import packed
from deepinfer.kernels.gpu.two_level import Scores
from deepinfer.kernels.operands import PagedRecords

_WIDTH = 512
"""Channels of a latent in the released models."""
_INDEX = (32, 128)
"""Heads and channels of their index keys."""


@kernel
def _slots_kernel(
    entries: Ptr,
    table: Ptr,
    slots: Ptr,
    num_entries: int,
    width_of_table: int,
    PER: tl.constexpr,
    B: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    entry = tl.load(entries + row * num_entries + i, i < num_entries, other=-1)
    group = tl.load(table + row * width_of_table + entry // PER, entry >= 0, other=0)
    slot = tl.where(entry >= 0, group * PER + entry % PER, -1)
    tl.store(slots + row * num_entries + i, slot, i < num_entries)


def slots_of(pages: PagedRecords, entries: torch.Tensor) -> torch.Tensor:
    """Records of ``entries`` int32 [T, K] of each row's sequence, int32 [T, K]; -1 stays."""
    chosen = entries.to(torch.int32).contiguous()
    num_rows, count = chosen.shape
    slots = torch.empty_like(chosen)
    sizes = {"PER": pages.per_group, "B": power_of_two(max(count, 1))}
    launch(
        _slots_kernel,
        (num_rows if count else 0,),
        chosen,
        pages.table,
        slots,
        count,
        pages.table.shape[1],
        **sizes,
    )
    return slots


def has_released_width(
    q: torch.Tensor, window: BoundRecords, pages: PagedRecords, entries: torch.Tensor
) -> bool:
    """Whether ``packed_ops.attend`` takes it: MXFP8 windows, and FP4 entries if there are any."""
    formats = window.kind == "mxfp8" and (entries.shape[1] == 0 or pages.records.kind == "fp4")
    return formats and q.shape[2] == _WIDTH


def attend(
    q: torch.Tensor,
    window: BoundRecords,
    window_slots: torch.Tensor,
    pages: PagedRecords,
    entries: torch.Tensor,
    sink: torch.Tensor,
    workspace: Workspace,
) -> torch.Tensor:
    """See ``Ops.attend_records``; ``workspace`` is scratch of the stream."""
    if not has_released_width(q, window, pages, entries):
        return pool_attention.attend_records(q, window, window_slots, pages, entries, sink)
    near, far = window_slots.to(torch.int32).contiguous(), slots_of(pages, entries)
    half = q.to(torch.bfloat16).contiguous()
    return packed_ops.attend(half, window, near, pages.records, far, sink, workspace).to(torch.float32)


@dataclass(frozen=True)
class _ReleasedKeys:
    """Keys that ``packed_ops.scan`` scores."""

    pages: PagedRecords

    @property
    def per_group(self) -> int:
        """See ``Scores``."""
        return self.pages.per_group

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
        table, own = self.pages.table[part], counts.to(torch.int32)
        if first:
            table, own = table[:, first // self.per_group :].contiguous(), own - first
        halves = q[part].to(torch.bfloat16), w[part].to(torch.bfloat16)
        args = (*halves, self.pages.records, table, own, length, block_size)
        return packed_ops.scan(*args, blocks, keys, best)


def _scores(q: torch.Tensor, pages: PagedRecords, block_size: int) -> Scores:
    fits = q.shape[1:] == _INDEX and pages.per_group % 64 == 0 and 64 % block_size == 0
    return _ReleasedKeys(pages) if fits else Keys(packed(pages.records), pages.table)


def select(
    q: torch.Tensor,
    w: torch.Tensor,
    pages: PagedRecords,
    counts: torch.Tensor,
    longest: int,
    top: int,
    num_blocks: int,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.select_records``."""
    keys = _scores(q, pages, block_size)
    return two_level.index_select(q, w, keys, counts, longest, top, num_blocks, block_size)


def select_within(
    q: torch.Tensor,
    w: torch.Tensor,
    pages: PagedRecords,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
) -> torch.Tensor:
    """See ``Ops.select_records_within``."""
    return two_level.index_select_within(q, w, _scores(q, pages, block_size), counts, blocks, block_size, top)
