"""Ops of turns and drafts that move and compare integers: the same launches in both profiles."""

from __future__ import annotations

from deepinfer.kernels.gpu.draft_rows import draft_rows
from deepinfer.kernels.gpu.turn_ends import end_turn, leave_turn
from deepinfer.kernels.gpu.turn_plan import plan_turn


class TurnKernels:
    """Gives a kernel set the ops of these names; see ``Ops``."""

    draft_rows = staticmethod(draft_rows)
    plan_turn = staticmethod(plan_turn)
    end_turn = staticmethod(end_turn)
    leave_turn = staticmethod(leave_turn)
