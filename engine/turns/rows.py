"""Plans a turn on the device: from the table of its sequences to everything the layers read.

The same numbers as ``step_plan`` and ``step_records`` work out on the host for such a step, laid out for a
bucket of shapes: rows that fill it up see nothing and leave nothing (see ``step_padding``). Positions may be
known to the device alone, so nothing here asks for a value.

Legend: R sequences, T rows, q most rows of a sequence, W window, n ids of an Engram hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.batch import Groups, Rows, Step
from deepinfer.engine.step_plan import BLOCK_TOKENS, PlannedRows, StepPlan
from deepinfer.engine.step_records import StepLayout, half_depth
from deepinfer.engine.turns.constants import TurnConstants
from deepinfer.engine.turns.state import TurnState
from deepinfer.engine.turns.table import DRAFTS, FROM_DEVICE, LIMIT, LOW, SLOT, START, TurnShape
from deepinfer.kernels.interface import Ops

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
    token_ids=_NOTHING,
    recent_ids=np.empty((0, 1), np.int64),
    encoder=_UNPLANNED,
    kept=_NOTHING,
    decoder=_UNPLANNED,
)
"""The plan of a turn, as far as the host has one."""


@dataclass(frozen=True, kw_only=True)
class TurnRows:
    """Who computes what in a turn.

    Attributes:
        table: int64 [R, columns], see ``table``.
        place: int64 [R], rows of the state.
        start: int64 [R], position of each sequence's first row.
        count: int64 [R], its rows; 0 for padding and for a sequence that has nothing left to compute.
        line: int64 [R, n - 1 + q], ids before it, then those of its rows.
        first: int64 [R], its first row.
        owner: int64 [T], sequence of each row; any for padding.
        step: int64 [T], which of its sequence's rows it is.
        is_row: bool [T], false for padding.
        positions: int64 [T], 0 for padding.
        own: int64 [T, columns], the table row of each row's sequence.
        recent: int64 [T, n], its id, then those before it.
        constants: numbers that never change.
    """

    table: torch.Tensor
    place: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    line: torch.Tensor
    first: torch.Tensor
    owner: torch.Tensor
    step: torch.Tensor
    is_row: torch.Tensor
    positions: torch.Tensor
    own: torch.Tensor
    recent: torch.Tensor
    constants: TurnConstants


def turn_rows(
    table: torch.Tensor, state: TurnState, shape: TurnShape, constants: TurnConstants, ops: Ops
) -> TurnRows:
    """Give every sequence its rows, one behind the other."""
    before = shape.history - 1
    place = state.places(table[:, SLOT])
    is_left = table[:, START] == FROM_DEVICE
    start = torch.where(is_left, state.start[place], table[:, START])
    given = table[:, shape.first_id : shape.first_block]
    line = torch.where(is_left[:, None], state.line[place, : before + shape.width], given)
    drafts = table[:, DRAFTS]
    if shape.is_shared_out:
        total = shape.num_rows - shape.num_sequences
        drafts = ops.verify_budget(state.sure[place, : shape.width - 1], drafts.contiguous(), total)
    count = torch.minimum(drafts + 1, table[:, LIMIT] - start).clamp(min=0)
    row = constants.rows[: shape.num_rows]
    if shape.width == 1:
        owner, step, first, is_row = row, constants.zero.expand(row.shape), row, count > 0
    else:
        ends = torch.cumsum(count, 0)
        first = ends - count
        found = torch.searchsorted(ends, row, right=True)
        is_row = found < shape.num_sequences
        owner = found.clamp(max=shape.num_sequences - 1)
        step = torch.where(is_row, row - first[owner], constants.zero)
    return TurnRows(
        table=table,
        place=place,
        start=start,
        count=count,
        line=line,
        first=first,
        owner=owner,
        step=step,
        is_row=is_row,
        positions=torch.where(is_row, start[owner] + step, constants.zero),
        own=table[owner],
        recent=line[owner[:, None], step[:, None] + constants.back],
        constants=constants,
    )


def turn_step(rows: TurnRows, shape: TurnShape, layout: StepLayout, window: int, has_low: bool) -> Step:
    """The step that the layers run; ``has_low`` if decoder layers see less than encoder layers."""
    groups = {
        ratio: _groups(rows, shape, layout, number, room, longest)
        for number, (ratio, room, longest) in enumerate(shape.entries)
    }
    encoder = _rows(rows, shape, layout, window, None)
    return Step(
        plan=ON_DEVICE,
        token_ids=rows.recent[:, 0].clamp(min=0),
        recent_ids=rows.recent,
        encoder=encoder,
        kept=rows.owner,
        own_decoder=_rows(rows, shape, layout, window, rows.own[:, LOW]) if has_low else None,
        groups=groups,
    )


def _rows(
    rows: TurnRows, shape: TurnShape, layout: StepLayout, window: int, low: torch.Tensor | None
) -> Rows:
    """A history of W - 1 places per sequence, then the rows; ``low`` [T] is the first visible position."""
    ring, none, zero = layout.ring, rows.constants.none, rows.constants.zero
    margin = window - 1
    before = rows.start[:, None] + rows.constants.seen[:-1]
    exists = (before >= 0) & (rows.count > 0)[:, None]
    slot = rows.own[:, SLOT]
    seen = rows.positions[:, None] + rows.constants.seen
    first = rows.start[rows.owner]
    in_history = (rows.owner * margin + margin - first)[:, None]
    in_step = (shape.num_sequences * margin - first + _row_of(rows))[:, None]
    places = seen + torch.where(seen < first[:, None], in_history, in_step)
    visible = rows.is_row[:, None] & (seen >= (0 if low is None else low[:, None]))
    ratios = [ratio for ratio, _, _ in shape.entries]
    bases = rows.own[:, shape.first_base : shape.first_id] * rows.is_row[:, None]
    draft_ring = layout.draft_ring
    return Rows(
        plan=_UNPLANNED,
        positions=rows.positions,
        window=torch.where(visible, places, none),
        history_records=torch.where(exists, rows.table[:, SLOT, None] * ring + before % ring, none).flatten(),
        ring_records=torch.where(rows.is_row, slot * ring + rows.positions % ring, none),
        draft_ring_records=torch.where(rows.is_row, slot * draft_ring + rows.positions % draft_ring, none)
        if draft_ring
        else rows.owner[:0],
        base={ratio: bases[:, number].contiguous() for number, ratio in enumerate(ratios)},
        visible={
            ratio: torch.where(rows.is_row, torch.div(rows.positions + 1, ratio, rounding_mode="floor"), zero)
            for ratio in ratios
        },
        boundary_windows=rows.constants.no_window,
    )


def _row_of(rows: TurnRows) -> torch.Tensor:
    """int64 [T], where the rows of each row's sequence begin."""
    return rows.first[rows.owner]


def _groups(
    rows: TurnRows, shape: TurnShape, layout: StepLayout, number: int, room: int, longest: int
) -> Groups:
    """Entries of all sequences, and one place per row for what it may complete."""
    ratio, none, zero = shape.entries[number][0], rows.constants.none, rows.constants.zero
    device = rows.owner.device
    per_block = BLOCK_TOKENS // ratio
    bases = rows.table[:, shape.first_base + number].contiguous()
    entry = torch.arange(room, device=device)
    whose = (torch.searchsorted(bases, entry, right=True) - 1).clamp(min=0)
    mine = entry - bases[whose]
    block = torch.div(mine, per_block, rounding_mode="floor")
    exists = mine < torch.div((rows.start + rows.count)[whose], ratio, rounding_mode="floor")
    column = shape.first_block + block.clamp(max=shape.num_blocks - 1)
    records = torch.where(exists, rows.table[whose, column] * per_block + mine % per_block, none)
    completes = rows.is_row & ((rows.positions + 1) % ratio == 0)
    own_entry = torch.div(rows.positions, ratio, rounding_mode="floor")
    own_column = shape.first_block + torch.div(own_entry, per_block, rounding_mode="floor")
    written = rows.table[rows.owner, own_column] * per_block + own_entry % per_block
    row = rows.constants.rows[: shape.num_rows]
    pairs, waiting = torch.empty(shape.num_rows, 0, dtype=torch.int64, device=device), row[:0]
    if ratio == 2:
        depth = half_depth(layout.max_drafts)
        kept = rows.own[:, SLOT] * depth
        earlier = shape.num_rows + kept + torch.div(rows.positions - 1, 2, rounding_mode="floor") % depth
        opening = torch.where(rows.step == 0, earlier, row - 1)
        pairs = torch.stack([opening, row], 1) * completes[:, None]
        is_half = rows.is_row & (rows.positions % 2 == 0)
        waiting = torch.where(
            is_half, kept + torch.div(rows.positions, 2, rounding_mode="floor") % depth, none
        )
    return Groups(
        longest=longest,
        records=records,
        starts=torch.where(completes, rows.positions + 1 - ratio, zero),
        writes=torch.where(completes, written, none),
        pairs=pairs,
        waiting=waiting,
        halves=row if ratio == 2 else row[:0],
    )
