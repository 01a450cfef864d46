"""Planning, acceptance and hand-over of a turn; ``turn_chains`` says in torch what each stands for."""

from __future__ import annotations

from typing import Protocol

import torch

from deepinfer.kernels.turn_operands import TurnEnd, TurnForm, TurnFound, TurnPlan, TurnState


class TurnOps(Protocol):
    """Part of ``Ops``."""

    def plan_turn(self, table: torch.Tensor, state: TurnState, form: TurnForm) -> TurnPlan:
        """Rows of a turn, from its ``table`` int64 [R, columns] and what the turn before has left."""

    def end_turn(self, table: torch.Tensor, plan: TurnPlan, ids: torch.Tensor, form: TurnForm) -> TurnEnd:
        """Which drafts are what was drawn in their place, ``ids`` int64 [T], and what follows from it."""

    def leave_turn(
        self, plan: TurnPlan, end: TurnEnd, found: TurnFound, state: TurnState, form: TurnForm
    ) -> torch.Tensor:
        """Write ``state`` for the turn behind; what the host wants to know in one buffer, uint8."""
