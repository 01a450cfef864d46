"""Ops that move rows of a step to where its layers want them, a launch or two each; both profiles."""

from __future__ import annotations

import torch

from deepinfer.kernels.gpu import first_rows
from deepinfer.kernels.gpu import halves as kept_halves


class StepKernels:
    """Part of ``GpuOps``."""

    bf16: bool

    def first_streams(
        self, embedding: torch.Tensor, ids: torch.Tensor, num_streams: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return first_rows.first_streams(embedding, ids, num_streams)

    def window_places(
        self,
        history: torch.Tensor,
        ring: torch.Tensor,
        windows: torch.Tensor,
        tables: torch.Tensor,
        owner: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return first_rows.window_places(history, ring, windows, tables, owner)

    def pool_waiting(
        self,
        values: torch.Tensor,
        scores: torch.Tensor,
        kept_values: torch.Tensor,
        kept_scores: torch.Tensor,
        pairs: torch.Tensor,
        places: torch.Tensor,
        halves: torch.Tensor,
    ) -> torch.Tensor:
        """See ``Ops``."""
        kept = kept_values, kept_scores
        return kept_halves.pool_waiting(values, scores, *kept, pairs, places, halves, self.bf16)
