"""Ops of kernel set ``ascend`` on caches: records, copies of blocks, index selection, attention.

Kernels are those of ``kernels.gpu``; calls are cut so that no launch holds more programs than the chip takes.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from deepinfer.kernels.ascend.capability import AscendChip
from deepinfer.kernels.ascend.row_blocks import Rows, by_rows, rows_of_a_call
from deepinfer.kernels.gpu.backend import GpuOps
from deepinfer.kernels.gpu.launching import ceil_div
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.row_copies import STRETCH

TILE = 32
"""Fewest columns that one program of a kernel used here computes."""
_HEADS = 16
"""Heads of one program of attention."""


class AscendCacheOps(GpuOps):
    """The ops of ``kernels.interface.Ops`` that read or write caches; see there for shapes and meaning."""

    def __init__(self, bf16: bool, round_caches: bool, device: torch.device, chip: AscendChip) -> None:
        """Bind the profile, the device, which is the CPU in Triton's interpreter, and the chip's limits."""
        super().__init__(bf16, round_caches, device)
        self.chip = chip

    def _rows(self, programs_a_row: int, fixed: int = 0) -> int:
        """Rows of one call whose rows bring ``programs_a_row`` programs each."""
        return rows_of_a_call(self.chip.max_programs, programs_a_row, fixed)

    def bind_records(self, kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> BoundRecords:
        """See ``Ops``; kernels get the bytes as signed ones, the only ones that Ascend loads."""
        checked = super().bind_records(kind, width, data, scales)
        return replace(checked, data=data.view(torch.int8), scales=scales.view(torch.int8))

    def store_records(self, where: BoundRecords, values: torch.Tensor, rows: torch.Tensor) -> None:
        """See ``Ops``."""
        store = super().store_records

        def part(own: torch.Tensor, places: torch.Tensor) -> Rows:
            store(where, own, places)
            return ()

        by_rows(part, self._rows(1), values, rows)

    def load_records(
        self, where: BoundRecords, rows: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Ops``."""
        load = super().load_records
        if out is None:
            return by_rows(lambda places: (load(where, places),), self._rows(1), rows)[0]

        def part(places: torch.Tensor, target: torch.Tensor) -> Rows:
            load(where, places, target)
            return ()

        by_rows(part, self._rows(1), rows, out)
        return out

    def copy_rows_(
        self, target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        copy = super().copy_rows_

        def part(there: torch.Tensor, here: torch.Tensor) -> Rows:
            copy(target, there, source, here)
            return ()

        # a row of one stretch may consist of single bytes
        by_rows(part, self._rows(ceil_div(target.shape[1], STRETCH)), to, rows)
        return target

    def index_select(
        self,
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
        """See ``Ops``."""
        select = super().index_select

        def part(
            queries: torch.Tensor, weights: torch.Tensor, first: torch.Tensor, own: torch.Tensor
        ) -> Rows:
            return select(queries, weights, keys, first, own, longest, top, num_blocks, block_size)

        rows = self._rows(max(1, ceil_div(longest, TILE)))
        entries, blocks = by_rows(part, rows, q, w, base, counts)
        return entries, blocks

    def index_select_within(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        keys: torch.Tensor,
        base: torch.Tensor,
        counts: torch.Tensor,
        blocks: torch.Tensor,
        block_size: int,
        top: int,
    ) -> torch.Tensor:
        """See ``Ops``."""
        select = super().index_select_within

        def part(*own: torch.Tensor) -> Rows:
            queries, weights, first, visible, candidates = own
            return (select(queries, weights, keys, first, visible, candidates, block_size, top),)

        rows = self._rows(max(1, ceil_div(blocks.shape[1] * block_size, TILE)))
        return by_rows(part, rows, q, w, base, counts, blocks)[0]

    def sparse_attention(
        self,
        q: torch.Tensor,
        window: torch.Tensor,
        window_slots: torch.Tensor,
        main: torch.Tensor,
        main_slots: torch.Tensor,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        """See ``Ops``."""
        attend = super().sparse_attention

        def part(queries: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> Rows:
            return (attend(queries, window, near, main, far, sink),)

        _, num_heads, width = q.shape
        widest = max(width, window_slots.shape[1] + main_slots.shape[1])
        rows = self._rows(ceil_div(widest, TILE) * ceil_div(num_heads, _HEADS))
        return by_rows(part, rows, q, window_slots, main_slots)[0]
