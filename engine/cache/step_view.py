"""What the layers of one step see of the caches: decoded rows, read back from the packed bytes, or the bytes.

Every key is quantised before it is used, so a token sees the same bits whether a key came from this step or
an earlier one. Decoded rows of a KV source serve all layers that share it.
"""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.engine.batch import Groups, Rows, Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.record_pool import RecordPool
from deepinfer.engine.cache.record_view import RecordView
from deepinfer.engine.cache.snapshots import saved_rings
from deepinfer.engine.step_records import boundaries
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords


class StepView:
    """Caches during one step; lives no longer than it.

    Attributes:
        records: for layers whose ops read packed records; None if they want decoded rows. Float32 caches are
            no records.
        snapshots: rings at the ends of cache blocks, by layer.
    """

    def __init__(self, caches: Caches, step: Step, ops: Ops, snapshot_layers: int = 0) -> None:
        """Nothing is decoded yet; layers below ``snapshot_layers`` save their rings at block boundaries."""
        reads_records = ops.reads_records and not caches.shape.exact
        self.records = RecordView(caches, step, ops) if reads_records else None
        self.caches, self.step, self.ops = caches, step, ops
        self.snapshot_layers = snapshot_layers
        self.snapshots: dict[int, torch.Tensor] = {}
        self._keys: dict[int, torch.Tensor] = {}
        self._main: dict[int, torch.Tensor] = {}
        self._chosen: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def window(self, layer: int, latents: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Window buffer of a layer, float32 [H + T, C], and its rows stored for later steps."""
        pool = self.caches.window[layer]
        # history first: a long chunk writes over the very ring records it has to read
        num_history = rows.history_records.shape[0]
        buffer = latents.new_empty(num_history + latents.shape[0], latents.shape[1])
        pool.load(self.ops, rows.history_records, buffer[:num_history])
        pool.store(self.ops, latents, rows.ring_records)
        buffer[num_history:] = latents
        if layer < self.snapshot_layers and rows.boundary_windows.shape[0]:
            self._save(layer, pool, buffer, rows.boundary_windows)
        return buffer

    def window_records(self, layer: int, latents: torch.Tensor, rows: Rows) -> BoundRecords:
        """The same as packed records, for ``records`` views."""
        assert self.records is not None
        buffer, ends = self.records.window(layer, latents, rows), rows.boundary_windows
        if layer < self.snapshot_layers and ends.shape[0]:
            lines = torch.arange(ends.numel(), device=ends.device)
            saved = buffer.flat.new_empty(ends.numel(), buffer.record.num_bytes)
            self.ops.copy_rows_(saved, lines, buffer.flat, ends.flatten())
            self.snapshots[layer] = saved.view(*ends.shape, -1)
        return buffer.bound(self.ops)

    def saves_draft_windows(self, rows: Rows) -> bool:
        """Whether ``draft_window`` saves snapshots of these rows."""
        return self.snapshot_layers == self.caches.config.num_hidden_layers and bool(
            rows.boundary_windows.shape[0]
        )

    def draft_window(self, stage: int, latents: torch.Tensor, rows: Rows) -> None:
        """Store context latents [T, C] of a draft stage; its snapshots have the key ``-1 - stage``.

        They are saved where a later prompt resumes from all layers. Where it resumes from the encoder's, it
        computes the kept rows again, and drafts look at no others.
        """
        pool = self.caches.draft_window[stage]
        if self.saves_draft_windows(rows):
            buffer = torch.cat([pool.load(self.ops, rows.history_records), latents])
            self._save(-1 - stage, pool, buffer, rows.boundary_windows)
        pool.store(self.ops, latents, rows.draft_ring_records)

    def _save(self, layer: int, ring: RecordPool, buffer: torch.Tensor, windows: torch.Tensor) -> None:
        """Pack ``windows`` int64 [b, W] of the rows that end cache blocks: uint8 [b, W, bytes]."""
        num_boundaries, window = windows.shape
        pool = RecordPool(ring.record, num_boundaries, window, buffer.device)
        places = torch.arange(num_boundaries * window, device=buffer.device)
        pool.store(self.ops, buffer[windows.flatten()], places)
        self.snapshots[layer] = pool.buffer.view(num_boundaries, window, pool.record.num_bytes)

    def save_rings(self) -> None:
        """The snapshots of a step whose layers ran in another view, out of the rings.

        They still hold the windows if every sequence has at most ring - W rows in the step.
        """
        rows = self.step.plan.encoder
        ends = boundaries(rows)
        if self.snapshot_layers == 0 or len(ends) == 0:
            return
        slots = np.array([chunk.slot for chunk in self.step.chunks], np.int64)[rows.chunk[ends]]
        boundaries_at = rows.positions[ends] + 1
        self.snapshots |= saved_rings(self.caches, slots, boundaries_at, self.snapshot_layers, False)

    def write(self, layer: int, groups: Groups, main: torch.Tensor, keys: torch.Tensor) -> None:
        """Store new entries of KV source ``layer``: ``main`` float32 [n, C], ``keys`` float32 [n, Ci]."""
        self.caches.main[layer].store(self.ops, main, groups.writes)
        self.caches.index[layer].store(self.ops, keys, groups.writes)

    def index_keys(self, source: int, ratio: int) -> torch.Tensor:
        """All index keys of the step's sequences, float32 [N, Ci]."""
        if source not in self._keys:
            self._keys[source] = self.caches.index[source].load(self.ops, self.step.groups[ratio].records)
        return self._keys[source]

    def main_rows(
        self, source: int, ratio: int, selected: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents of the selected entries.

        Args:
            selected: int32 [T, K], entry numbers inside each row's sequence, -1 for none.

        Returns:
            float32 [M, C] and int64 [T, K], the row of it that holds each entry, -1 for none.
        """
        if source in self._chosen and self._chosen[source][0] is selected:
            return self._chosen[source][1:]  # a layer that reuses the selection of the one before it
        latents, places = self._read_main(source, ratio, selected, rows)
        self._chosen[source] = selected, latents, places
        return latents, places

    def _read_main(
        self, source: int, ratio: int, selected: torch.Tensor, rows: Rows
    ) -> tuple[torch.Tensor, torch.Tensor]:
        records = self.step.groups[ratio].records
        is_chosen = selected >= 0
        places = torch.where(is_chosen, selected + rows.base[ratio][:, None], -1)
        if source not in self._main and records.shape[0] > places.numel():
            # decoding: few rows look at little of long contexts, so only what they chose is decoded
            wanted = torch.where(is_chosen, records[places], -1)
            numbers = torch.arange(places.numel(), device=places.device).view(places.shape)
            latents = self.caches.main[source].load(self.ops, wanted.flatten())
            return latents, torch.where(is_chosen, numbers, -1)
        if source not in self._main:
            self._main[source] = self.caches.main[source].load(self.ops, records)
        return self._main[source], places
