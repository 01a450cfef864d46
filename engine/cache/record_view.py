"""What the layers of one step see of the caches as packed records, for kernel sets that read them.

Nothing is decoded: ops get the pools, and tables that say which groups of them a sequence owns. In turns the
windows are read from the rings, too. A long chunk writes over the very ring records it has to read, so the
records of other steps lie in one buffer per layer, first the histories, copied from the rings, then one per
row of the step (``step_view`` has decoded rows in the same places). Where a record lies moves no bit.
"""

from __future__ import annotations

from functools import cached_property

import torch

from deepinfer.engine.batch import Rows, Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.record_pool import RecordPool
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords, PagedRecords


class RecordView:
    """Packed caches during one step; lives no longer than it."""

    def __init__(self, caches: Caches, step: Step, ops: Ops) -> None:
        """What the rows of a half of the model share is worked out when its first layer asks for it."""
        self.caches, self.step, self.ops = caches, step, ops
        self._of_rows: dict[int, _RowPlaces] = {}

    def window(self, layer: int, latents: torch.Tensor, rows: Rows) -> RecordPool:
        """Window records of a layer, with its rows stored for later steps."""
        ring, places = self.caches.window[layer], self._places(rows)
        if self.step.keeps_windows:
            ring.store(self.ops, latents, rows.ring_records)
            return ring
        num_history = rows.history_records.shape[0]
        # one record a group, so that no kernel is compiled for the number of rows
        buffer = RecordPool(ring.record, num_history + latents.shape[0], 1, latents.device)
        # history first: a long chunk writes over the very ring records it has to read
        self.ops.copy_rows_(buffer.flat, places.history, ring.flat, rows.history_records)
        ring.store(self.ops, latents, rows.ring_records)
        buffer.store(self.ops, latents, places.own)
        return buffer

    def slots(self, rows: Rows) -> torch.Tensor:
        """Window records that each row sees, int32 [T, W], -1 where invisible."""
        return self._places(rows).window

    def keys(self, source: int, rows: Rows) -> PagedRecords:
        """Index keys of KV source ``source``."""
        return self._paged(self.caches.index[source], rows)

    def entries(self, source: int, rows: Rows) -> PagedRecords:
        """Latents of KV source ``source``."""
        return self._paged(self.caches.main[source], rows)

    def nothing(self, window: BoundRecords, rows: Rows) -> tuple[PagedRecords, torch.Tensor]:
        """Entries of a layer that has none: any records, and int32 [T, 0]."""
        none = self._places(rows).window[:, :0]
        return PagedRecords(records=window, table=none, per_group=1), none

    def _paged(self, pool: RecordPool, rows: Rows) -> PagedRecords:
        table = self._places(rows).table
        return PagedRecords(records=pool.bound(self.ops), table=table, per_group=pool.per_group)

    def _places(self, rows: Rows) -> _RowPlaces:
        if id(rows) not in self._of_rows:
            self._of_rows[id(rows)] = _RowPlaces(rows, self.step, self.ops)
        return self._of_rows[id(rows)]


class _RowPlaces:
    """Places of the rows of one half of the model.

    Attributes:
        window: int32 [T, W], window records that each row sees, -1 where invisible.
        table: int32 [T, B], cache blocks of each row's sequence.
    """

    def __init__(self, rows: Rows, step: Step, ops: Ops) -> None:
        """Of ``rows``, which are those of ``step`` or some of them."""
        self._rows = rows  # keeps its identity from being given to another
        if step.keeps_windows:
            records = rows.history_records, rows.ring_records
            self.window, self.table = ops.window_places(*records, rows.window, step.tables, rows.owner)
        else:
            self.window = rows.window.to(torch.int32)
            self.table = step.tables[rows.owner].to(torch.int32)

    @cached_property
    def _numbers(self) -> torch.Tensor:
        rows = self._rows
        size = rows.history_records.shape[0] + rows.positions.shape[0]
        return torch.arange(size, device=rows.positions.device)

    @property
    def history(self) -> torch.Tensor:
        """Places of the histories in the window buffer, int64 [H]."""
        return self._numbers[: self._rows.history_records.shape[0]]

    @property
    def own(self) -> torch.Tensor:
        """Places of the rows behind them, int64 [T]."""
        return self._numbers[self._rows.history_records.shape[0] :]
