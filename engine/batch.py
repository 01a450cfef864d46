"""A planned step as tensors: what the layers of a forward pass read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deepinfer.engine.prefill import PrefillRule, visible_entries
from deepinfer.engine.step_plan import Chunk, Int64, PlannedRows, plan_step


@dataclass(frozen=True, kw_only=True)
class Rows:
    """``PlannedRows`` as tensors; see there."""

    positions: torch.Tensor
    slots: torch.Tensor
    window: torch.Tensor
    base: torch.Tensor

    def entry_base(self, ratio: int) -> torch.Tensor:
        """Pool row of entry 0 of each row's sequence, int64 [T]."""
        return self.base // ratio

    def visible(self, ratio: int) -> torch.Tensor:
        """Visible compressed entries of each row, int64 [T]."""
        return torch.from_numpy(visible_entries(self.positions.numpy(), ratio))


@dataclass(frozen=True, kw_only=True)
class Step:
    """``StepPlan`` as tensors; see there. ``recent_ids`` stays in numpy, where the hash is computed."""

    chunks: tuple[Chunk, ...]
    token_ids: torch.Tensor
    recent_ids: Int64
    encoder: Rows
    kept: torch.Tensor
    decoder: Rows

    @property
    def is_truncated(self) -> bool:
        """Whether the decoder layers compute fewer rows than the encoder layers."""
        return self.kept.shape[0] < self.token_ids.shape[0]


def _tensors(rows: PlannedRows) -> Rows:
    return Rows(
        positions=torch.from_numpy(rows.positions),
        slots=torch.from_numpy(rows.slots),
        window=torch.from_numpy(rows.window),
        base=torch.from_numpy(rows.base),
    )


def build_step(chunks: Sequence[Chunk], rule: PrefillRule, history: int) -> Step:
    """Plan a step (see ``plan_step``) and turn it into tensors."""
    plan = plan_step(chunks, rule, history)
    return Step(
        chunks=plan.chunks,
        token_ids=torch.from_numpy(plan.token_ids),
        recent_ids=plan.recent_ids,
        encoder=_tensors(plan.encoder),
        kept=torch.from_numpy(plan.kept),
        decoder=_tensors(plan.decoder),
    )
