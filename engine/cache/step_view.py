"""What the layers of one step see of the caches: decoded rows, read back from the packed bytes.

Every key is quantised before it is used, so a token sees the same bits whether a key came from this step or
an earlier one. Decoded rows of a KV source serve all layers that share it.
"""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.engine.batch import Rows, Step
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.record_pool import RecordPool
from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.kernels.interface import Ops


class StepView:
    """Caches during one step; lives no longer than it."""

    def __init__(self, caches: Caches, step: Step, ops: Ops, snapshot_layers: int = 0) -> None:
        """Nothing is decoded yet; layers below ``snapshot_layers`` save their rings at block boundaries."""
        self.caches, self.step, self.ops = caches, step, ops
        self.snapshot_layers = snapshot_layers
        self.snapshots: dict[int, torch.Tensor] = {}
        self._entries: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._keys: dict[int, torch.Tensor] = {}
        self._main: dict[int, torch.Tensor] = {}
        self._chosen: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._ring_rows: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def window(self, layer: int, latents: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Window buffer of a layer, float32 [H + T, C], and its rows stored for later steps."""
        pool = self.caches.window[layer]
        # history first: a long chunk writes over the very ring records it has to read
        history_rows, ring_rows = self._ring_records(rows, pool.per_group)
        num_history = history_rows.shape[0]
        buffer = torch.empty(num_history + latents.shape[0], latents.shape[1])
        pool.load(self.ops, history_rows, buffer[:num_history])
        pool.store(self.ops, latents, ring_rows)
        buffer[num_history:] = latents
        if layer < self.snapshot_layers:
            self._save(layer, buffer, rows)
        return buffer

    def _ring_records(self, rows: Rows, ring: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Ring records that ``rows`` read and write; the same for all layers of a half."""
        key = id(rows), ring  # the step holds its rows, so the id stays theirs
        if key not in self._ring_rows:
            self._ring_rows[key] = rows.history_records(ring), rows.ring_records(ring)
        return self._ring_rows[key]

    def _save(self, layer: int, buffer: torch.Tensor, rows: Rows) -> None:
        """Pack the windows that end at block boundaries: uint8 [boundaries of the step, W, bytes]."""
        last = (rows.positions + 1) % BLOCK_TOKENS == 0
        seen = buffer[rows.window[last]]
        num_boundaries, window, _ = seen.shape
        pool = RecordPool(self.caches.window[layer].record, num_boundaries, window)
        pool.store(self.ops, seen.flatten(0, 1), torch.arange(num_boundaries * window))
        self.snapshots[layer] = pool.buffer.view(num_boundaries, window, pool.record.num_bytes)

    def entries(self, ratio: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Records int64 [N] of all entries of the step's sequences, and where each sequence's run begins."""
        if ratio not in self._entries:
            found = self.step.plan.entries(ratio)
            self._entries[ratio] = torch.from_numpy(found.records), torch.from_numpy(found.base)
        return self._entries[ratio]

    def write(
        self, layer: int, chunk: torch.Tensor, entries: torch.Tensor, main: torch.Tensor, keys: torch.Tensor
    ) -> None:
        """Store new entries of KV source ``layer``.

        Args:
            chunk: int64 [n], chunk of the step that completes each entry.
            entries: int64 [n], entry number inside the sequence.
            main: float32 [n, C].
            keys: float32 [n, Ci].
        """
        per_block = self.caches.main[layer].per_group
        ratio = BLOCK_TOKENS // per_block
        records, base = self.entries(ratio)
        rows = records[base[chunk] + entries]
        self.caches.main[layer].store(self.ops, main, rows)
        self.caches.index[layer].store(self.ops, keys, rows)

    def index_keys(self, source: int, ratio: int) -> torch.Tensor:
        """All index keys of the step's sequences, float32 [N, Ci]."""
        if source not in self._keys:
            self._keys[source] = self.caches.index[source].load(self.ops, self.entries(ratio)[0])
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
        records, base = self.entries(ratio)
        chosen = selected.numpy()
        places = np.where(chosen >= 0, chosen + base.numpy()[rows.chunk.numpy()][:, None], -1)
        if source not in self._main and records.shape[0] > places.size:
            # decoding: few rows look at little of long contexts, so only what they chose is decoded
            wanted = np.where(places >= 0, records.numpy()[places], -1).reshape(-1)
            numbers = np.arange(wanted.size).reshape(places.shape)
            latents = self.caches.main[source].load(self.ops, torch.from_numpy(wanted))
            return latents, torch.from_numpy(np.where(places >= 0, numbers, -1))
        if source not in self._main:
            self._main[source] = self.caches.main[source].load(self.ops, records)
        return self._main[source], torch.from_numpy(places)
