"""State of a sequence at a block boundary: the window latents that the rings held there, as stored bytes.

At a multiple of 128 every compression group is closed, so rings are all the state there is (product.md
section 9).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.engine.cache.caches import Caches


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
            pool.records[slot, positions % pool.per_group] = saved
