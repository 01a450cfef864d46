"""State of a sequence at a block boundary: the window latents that the rings held there, as stored bytes.

At a multiple of 128 every compression group is closed, so rings are all the state there is (product.md
section 9).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.record_pool import RecordPool
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.transfer import moved


@dataclass(frozen=True)
class Snapshot:
    """``rings[layer]`` uint8 [W, record bytes], the W positions before the boundary, ascending.

    Draft stages have the keys -1, -2, ...
    """

    rings: dict[int, torch.Tensor]

    @property
    def has_drafts(self) -> bool:
        """Whether the contexts of drafts are among them."""
        return -1 in self.rings

    def restore(self, caches: Caches, slot: int, boundary: int) -> None:
        """Put the records back where the rings of ``slot`` keep the positions before ``boundary``."""
        for layer, saved in self.rings.items():
            pool = caches.window[layer] if layer >= 0 else caches.draft_window[-1 - layer]
            positions = torch.arange(boundary - saved.shape[0], boundary, device=saved.device)
            places = slot * pool.per_group + positions % pool.per_group
            caches.copy(pool.flat, places, saved, torch.arange(saved.shape[0], device=saved.device))


def saved_rings(
    caches: Caches, slots: Int64, boundaries: Int64, num_layers: int, with_drafts: bool
) -> dict[int, torch.Tensor]:
    """What the rings of ``slots`` [b] hold before ``boundaries`` [b], by layer: uint8 [b, W, bytes].

    They hold it as long as no more than ring - W positions were computed behind a boundary.
    """
    window = caches.config.sliding_window
    shape = caches.shape
    pools = {layer: (caches.window[layer], shape.ring) for layer in range(num_layers)}
    if with_drafts:
        pools |= {-1 - stage: (pool, shape.draft_ring) for stage, pool in enumerate(caches.draft_window)}
    places = (boundaries[:, None] + np.arange(-window, 0)).flatten()
    owners, lines = np.repeat(slots, window), np.arange(places.size)
    rings = {shape.ring, shape.draft_ring} - {0}
    where = {ring: torch.from_numpy(owners * ring + places % ring) for ring in rings}
    at = moved(where | {0: torch.from_numpy(lines)}, caches.window[0].buffer.device)
    return {layer: _copied(caches, pool, at[ring], at[0]) for layer, (pool, ring) in pools.items()}


def _copied(caches: Caches, pool: RecordPool, places: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
    """Records ``places`` int64 [b * W] of a pool of rings: uint8 [b, W, bytes]."""
    saved = pool.flat.new_empty(lines.shape[0], pool.record.num_bytes)
    return caches.copy(saved, lines, pool.flat, places).view(-1, caches.config.sliding_window, saved.shape[1])
