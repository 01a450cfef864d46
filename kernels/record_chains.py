"""Attention and index selection on packed cache records, defined by the ops they stand for.

A kernel set that reads records where they lie overrides the methods. It owes the bits of its own ops on
decoded records, but where it says that a shape has a kernel, and so an order of sums, of its own.

Legend: T rows, K selected entries, G groups of records of a sequence, C width of a record.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords, PagedRecords


def records_of(pages: PagedRecords, entries: torch.Tensor) -> torch.Tensor:
    """Record numbers of ``entries`` [T, K] of each row's sequence, int64 [T, K]; -1 where the entry is -1."""
    entry = entries.to(torch.int64)
    group = (entry // pages.per_group).clamp(min=0)
    records = pages.table.gather(1, group) * pages.per_group + entry % pages.per_group
    return torch.where(entry >= 0, records, -1)


def window_places(
    ops: Ops,
    history: torch.Tensor,
    ring: torch.Tensor,
    windows: torch.Tensor,
    tables: torch.Tensor,
    owner: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rows see, by record; see ``Ops.window_places``."""
    records = pad(torch.cat([history, ring]), (0, 1), value=-1)  # place -1 is the last one
    return records[windows].to(torch.int32), tables[owner].to(torch.int32)


def select_records(
    ops: Ops,
    q: torch.Tensor,
    w: torch.Tensor,
    pages: PagedRecords,
    counts: torch.Tensor,
    longest: int,
    top: int,
    num_blocks: int,
    block_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.index_select``; no row's count exceeds the entries that its table names."""
    keys, base = _decoded(ops, pages)
    longest = min(longest, pages.table.shape[1] * pages.per_group)
    return ops.index_select(q, w, keys, base, counts, longest, top, num_blocks, block_size)


def select_records_within(
    ops: Ops,
    q: torch.Tensor,
    w: torch.Tensor,
    pages: PagedRecords,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
) -> torch.Tensor:
    """See ``Ops.index_select_within``."""
    keys, base = _decoded(ops, pages)
    return ops.index_select_within(q, w, keys, base, counts, blocks, block_size, top)


def _decoded(ops: Ops, pages: PagedRecords) -> tuple[torch.Tensor, torch.Tensor]:
    """All entries of every row, float32 [T * G * per_group, C], and where those of each row begin."""
    num_rows, num_groups = pages.table.shape
    length = num_groups * pages.per_group
    device = pages.table.device
    entries = torch.arange(length, device=device).expand(num_rows, length)
    keys = ops.load_records(pages.records, records_of(pages, entries).flatten())
    return keys, torch.arange(num_rows, device=device) * length


def attend_records(
    ops: Ops,
    q: torch.Tensor,
    window: BoundRecords,
    window_slots: torch.Tensor,
    pages: PagedRecords,
    entries: torch.Tensor,
    sink: torch.Tensor,
) -> torch.Tensor:
    """See ``Ops.sparse_attention``.

    Args:
        q: [T, H, C].
        window: latents, among them those of this step.
        window_slots: int32 [T, W], records of it in ascending position, -1 where invisible.
        pages: compressed entries.
        entries: int32 [T, K], entries of each row's sequence, ascending, -1 for none; K may be 0.
        sink: [H].
    """
    near, near_slots = _gathered(ops, window, window_slots.to(torch.int64))
    far, far_slots = _gathered(ops, pages.records, records_of(pages, entries))
    return ops.sparse_attention(q, near, near_slots, far, far_slots, sink)


def _gathered(ops: Ops, where: BoundRecords, records: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Records int64 [T, K] decoded, float32 [T * K, C], and the row of it for each; -1 stays."""
    numbers = torch.arange(records.numel(), device=records.device).view(records.shape)
    return ops.load_records(where, records.flatten()), torch.where(records >= 0, numbers, -1)


class RecordChains:
    """Gives a kernel set these ops as methods."""

    reads_records = False

    window_places = window_places
    select_records = select_records
    select_records_within = select_records_within
    attend_records = attend_records
