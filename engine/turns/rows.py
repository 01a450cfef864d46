"""A planned turn as the step that the layers run."""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.engine.batch import Groups, Rows, Step
from deepinfer.engine.step_plan import BLOCK_TOKENS, PlannedRows, StepPlan
from deepinfer.engine.step_records import StepLayout, half_depth
from deepinfer.engine.turns.table import TurnShape
from deepinfer.kernels.turn_operands import TurnForm, TurnPlan

_NOTHING = np.empty(0, np.int64)
_UNPLANNED = PlannedRows(
    positions=_NOTHING,
    chunk=_NOTHING,
    window=np.empty((0, 0), np.int64),
    history_slot=_NOTHING,
    history_position=_NOTHING,
    kept=np.empty(0, np.bool_),
    last=_NOTHING,
)
ON_DEVICE = StepPlan(
    chunks=(),
    history=1,
    encoder=_UNPLANNED,
    kept=_NOTHING,
    decoder=_UNPLANNED,
)
"""The plan of a turn, as far as the host has one."""


def turn_form(shape: TurnShape, layout: StepLayout, window: int, has_low: bool) -> TurnForm:
    """Sizes of a turn; ``has_low`` if decoder layers see less than encoder layers."""
    return TurnForm(
        num_sequences=shape.num_sequences,
        num_rows=shape.num_rows,
        width=shape.width,
        history=shape.history,
        num_blocks=shape.num_blocks,
        block_tokens=BLOCK_TOKENS,
        entries=shape.entries,
        first_base=shape.first_base,
        first_id=shape.first_id,
        first_block=shape.first_block,
        window=window,
        ring=layout.ring,
        draft_ring=layout.draft_ring,
        half_depth=half_depth(layout.max_drafts),
        has_low=has_low,
        is_shared_out=shape.is_shared_out,
    )


def turn_step(plan: TurnPlan, shape: TurnShape, table: torch.Tensor) -> Step:
    """The step that the layers run; ``table`` int64 [R, columns] is what the host says."""
    groups = {
        ratio: Groups(
            longest=longest,
            records=found.records,
            starts=found.starts,
            writes=found.writes,
            pairs=found.pairs,
            waiting=found.waiting,
            halves=found.halves,
        )
        for (ratio, _, longest), found in zip(shape.entries, plan.groups, strict=True)
    }
    return Step(
        plan=ON_DEVICE,
        token_ids=plan.token_ids,
        recent_ids=plan.recent,
        encoder=_rows(plan, shape, plan.windows),
        kept=plan.owner,
        own_decoder=None if plan.low_windows is None else _rows(plan, shape, plan.low_windows),
        groups=groups,
        tables=table[:, shape.first_block :],
        keeps_windows=True,  # rings have room for the rows of a turn
    )


def _rows(plan: TurnPlan, shape: TurnShape, windows: torch.Tensor) -> Rows:
    """Rows that see these windows; no block ends among them, those are found when the turn has landed."""
    ratios = [ratio for ratio, _, _ in shape.entries]
    return Rows(
        plan=_UNPLANNED,
        owner=plan.owner,
        positions=plan.positions,
        window=windows,
        history_records=plan.history,
        ring_records=plan.ring,
        draft_ring_records=plan.draft_ring,
        base=dict(zip(ratios, plan.base, strict=True)),
        visible=dict(zip(ratios, plan.visible, strict=True)),
        boundary_windows=windows[:0],
    )
