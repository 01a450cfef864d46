"""A planned step as tensors: what the layers of a forward pass read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.prefill import PrefillRule, visible_entries
from deepinfer.engine.step_plan import Chunk, Int64, PlannedRows, StepPlan, plan_step


@dataclass(frozen=True, kw_only=True)
class Rows:
    """``PlannedRows`` as tensors; see there. ``slots`` int64 [T] is the state slot of each row's sequence."""

    positions: torch.Tensor
    chunk: torch.Tensor
    slots: torch.Tensor
    window: torch.Tensor
    history_slot: torch.Tensor
    history_position: torch.Tensor
    kept: torch.Tensor
    last: torch.Tensor

    def visible(self, ratio: int) -> torch.Tensor:
        """Visible compressed entries of each row, int64 [T]."""
        return torch.from_numpy(visible_entries(self.positions.numpy(), ratio))

    def history_records(self, ring: int) -> torch.Tensor:
        """Ring records that the window buffer begins with, int64 [H]."""
        return self.history_slot * ring + self.history_position % ring

    def ring_records(self, ring: int) -> torch.Tensor:
        """Ring record that each row writes, int64 [T]; -1 for none."""
        stored = self.kept & (self.positions > self.last - ring)
        return torch.where(stored, self.slots * ring + self.positions % ring, -1)


@dataclass(frozen=True, kw_only=True)
class Step:
    """``StepPlan`` as tensors; see there."""

    plan: StepPlan
    token_ids: torch.Tensor
    encoder: Rows
    kept: torch.Tensor
    decoder: Rows

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The sequences' chunks in packed order."""
        return self.plan.chunks

    @property
    def recent_ids(self) -> Int64:
        """Stays in numpy, where the Engram hash is computed."""
        return self.plan.recent_ids

    @property
    def is_truncated(self) -> bool:
        """Whether the decoder layers compute fewer rows than the encoder layers."""
        return self.kept.shape[0] < self.token_ids.shape[0]


def _tensors(rows: PlannedRows, chunks: Sequence[Chunk]) -> Rows:
    slots = torch.tensor([chunk.slot for chunk in chunks], dtype=torch.int64)
    chunk = torch.from_numpy(rows.chunk)
    return Rows(
        positions=torch.from_numpy(rows.positions),
        chunk=chunk,
        slots=slots[chunk],
        window=torch.from_numpy(rows.window),
        history_slot=torch.from_numpy(rows.history_slot),
        history_position=torch.from_numpy(rows.history_position),
        kept=torch.from_numpy(rows.kept),
        last=torch.from_numpy(rows.last),
    )


def build_step(chunks: Sequence[Chunk], rule: PrefillRule, history: int) -> Step:
    """Plan a step (see ``plan_step``) and turn it into tensors."""
    plan = plan_step(chunks, rule, history)
    return Step(
        plan=plan,
        token_ids=torch.from_numpy(np.ascontiguousarray(plan.token_ids)),
        encoder=_tensors(plan.encoder, chunks),
        kept=torch.from_numpy(plan.kept),
        decoder=_tensors(plan.decoder, chunks),
    )
