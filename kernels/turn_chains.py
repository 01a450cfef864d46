"""Turns in plain torch: what planning, acceptance and hand-over of a turn are.

A kernel set may do it in fewer launches, and owes the same integers: those that ``engine.step_plan`` and
``engine.step_records`` work out on the host for such a step, laid out for a bucket of shapes. Rows that fill
it up see nothing and leave nothing. Positions may be known to the device alone, so nothing asks for a value.

Legend: R sequences, T rows, q most rows of a sequence, W window, n ids of an Engram hash, B drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.kernels.interface import Ops
from deepinfer.kernels.turn_operands import (
    CONTEXT,
    DRAFTS,
    FLOOR,
    FROM_DEVICE,
    HEAT,
    LIMIT,
    LOW,
    SAMPLE,
    SEED,
    SLOT,
    START,
    TOP_K,
    TurnEnd,
    TurnForm,
    TurnFound,
    TurnGroups,
    TurnPlan,
    TurnState,
)


@dataclass(frozen=True)
class _Sequences:
    """int64 [R] each, see ``TurnPlan``."""

    place: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    first: torch.Tensor


@dataclass(frozen=True)
class _Rows:
    """[T] each: sequence, number within it, position, whether it is no padding; its line of the table."""

    owner: torch.Tensor
    step: torch.Tensor
    positions: torch.Tensor
    is_row: torch.Tensor
    own: torch.Tensor


def plan_turn(ops: Ops, table: torch.Tensor, state: TurnState, form: TurnForm) -> TurnPlan:
    """Give every sequence its rows, one behind the other, and say what each reads and writes.

    Args:
        table: int64 [R, columns], what the host says.
        state: what the turn before has left.
        form: sizes.
    """
    device = table.device
    place = torch.where(table[:, SLOT] >= 0, table[:, SLOT], len(state.start) - 1)
    is_left = table[:, START] == FROM_DEVICE
    start = torch.where(is_left, state.start[place], table[:, START])
    size = form.history - 1 + form.width
    given = table[:, form.first_id : form.first_id + size]
    line = torch.where(is_left[:, None], state.line[place, :size], given)
    drafts = table[:, DRAFTS].contiguous()
    if form.is_shared_out:
        sure = state.sure[place, : form.width - 1]
        drafts = ops.verify_budget(sure, drafts, form.num_rows - form.num_sequences)
    count = torch.minimum(drafts + 1, table[:, LIMIT] - start).clamp(min=0)
    row = torch.arange(form.num_rows, device=device)
    if form.width == 1:
        first, owner, step, is_row = row, row, row * 0, count > 0
    else:
        ends = torch.cumsum(count, 0)
        first = ends - count
        found = torch.searchsorted(ends, row, right=True)
        is_row = found < form.num_sequences
        owner = found.clamp(max=form.num_sequences - 1)
        step = torch.where(is_row, row - first[owner], 0)
    sequences = _Sequences(place, start, count, first)
    positions = torch.where(is_row, start[owner] + step, 0)
    rows = _Rows(owner, step, positions, is_row, table[owner])
    recent = line[owner[:, None], step[:, None] + torch.arange(form.history - 1, -1, -1, device=device)]
    heat, floor = torch.stack([rows.own[:, HEAT], rows.own[:, FLOOR]]).view(torch.float32)
    low = rows.own[:, LOW]
    return TurnPlan(
        place=place,
        start=start,
        count=count,
        first=first,
        line=line,
        owner=owner,
        positions=positions,
        following=positions + 1,
        token_ids=recent[:, 0].clamp(min=0),
        recent=recent,
        seeds=rows.own[:, SEED].contiguous(),
        samples=rows.own[:, SAMPLE].contiguous(),
        top_k=rows.own[:, TOP_K].contiguous(),
        temperature=heat[::2].contiguous(),
        top_p=heat[1::2].contiguous(),
        min_p=floor[::2].contiguous(),
        windows=_windows(sequences, rows, form, low * 0),
        low_windows=_windows(sequences, rows, form, low) if form.has_low else None,
        history=_history(table, sequences, form),
        ring=_ring_records(rows, form.ring),
        draft_ring=_ring_records(rows, form.draft_ring) if form.draft_ring else row[:0],
        base=tuple(rows.own[:, form.first_base + number] * is_row for number in range(len(form.entries))),
        visible=tuple(torch.where(is_row, (positions + 1) // ratio, 0) for ratio, _, _ in form.entries),
        groups=tuple(_groups(table, sequences, rows, form, number) for number in range(len(form.entries))),
    )


def _windows(sequences: _Sequences, rows: _Rows, form: TurnForm, low: torch.Tensor) -> torch.Tensor:
    """Places in the W - 1 of each sequence's history, then in the step; ``low`` [T] is the first visible."""
    margin = form.window - 1
    seen = rows.positions[:, None] + torch.arange(1 - form.window, 1, device=low.device)
    first = sequences.start[rows.owner]
    in_history = (rows.owner * margin + margin - first)[:, None]
    in_step = (form.num_sequences * margin - first + sequences.first[rows.owner])[:, None]
    places = seen + torch.where(seen < first[:, None], in_history, in_step)
    visible = rows.is_row[:, None] & (seen >= low[:, None])
    return torch.where(visible, places, -1)


def _history(table: torch.Tensor, sequences: _Sequences, form: TurnForm) -> torch.Tensor:
    """Ring records of the W - 1 positions before each sequence's rows."""
    before = sequences.start[:, None] + torch.arange(1 - form.window, 0, device=table.device)
    exists = (before >= 0) & (sequences.count > 0)[:, None]
    return torch.where(exists, table[:, SLOT, None] * form.ring + before % form.ring, -1).flatten()


def _ring_records(rows: _Rows, ring: int) -> torch.Tensor:
    """Where each row is kept."""
    return torch.where(rows.is_row, rows.own[:, SLOT] * ring + rows.positions % ring, -1)


def _groups(
    table: torch.Tensor, sequences: _Sequences, rows: _Rows, form: TurnForm, number: int
) -> TurnGroups:
    """Entries of all sequences, and one place per row for what it may complete."""
    ratio, room, _ = form.entries[number]
    per_block = form.block_tokens // ratio
    bases = table[:, form.first_base + number].contiguous()
    entry = torch.arange(room, device=table.device)
    whose = (torch.searchsorted(bases, entry, right=True) - 1).clamp(min=0)
    mine = entry - bases[whose]
    exists = mine < (sequences.start + sequences.count)[whose] // ratio
    column = form.first_block + (mine // per_block).clamp(max=form.num_blocks - 1)
    records = torch.where(exists, table[whose, column] * per_block + mine % per_block, -1)
    completes = rows.is_row & ((rows.positions + 1) % ratio == 0)
    own_entry = rows.positions // ratio
    written = table[rows.owner, form.first_block + own_entry // per_block] * per_block
    row = torch.arange(form.num_rows, device=table.device)
    pairs, waiting = row[:, None][:, :0], row[:0]
    if ratio == 2:
        depth = form.half_depth
        kept = rows.own[:, SLOT] * depth
        earlier = form.num_rows + kept + (rows.positions - 1) // 2 % depth
        opening = torch.where(rows.step == 0, earlier, row - 1)
        pairs = torch.stack([opening, row], 1) * completes[:, None]
        is_half = rows.is_row & (rows.positions % 2 == 0)
        waiting = torch.where(is_half, kept + rows.positions // 2 % depth, -1)
    return TurnGroups(
        records=records,
        starts=torch.where(completes, rows.positions + 1 - ratio, 0),
        writes=torch.where(completes, written + own_entry % per_block, -1),
        pairs=pairs,
        waiting=waiting,
        halves=row if ratio == 2 else row[:0],
    )


def end_turn(ops: Ops, table: torch.Tensor, plan: TurnPlan, ids: torch.Tensor, form: TurnForm) -> TurnEnd:
    """Accept the leading drafts that were drawn in their place: ``ids`` int64 [T]."""
    accepted, golden = torch.zeros_like(plan.count), ids
    if form.width > 1:
        number = torch.arange(form.width, device=ids.device)
        drawn = ids[(plan.first[:, None] + number).clamp(max=form.num_rows - 1)]
        fed = plan.line[:, form.history :]
        is_right = (drawn[:, :-1] == fed) & (number[1:] < plan.count[:, None])
        accepted = is_right.to(torch.int64).cumprod(1).sum(1)
        golden = drawn.gather(1, accepted[:, None])[:, 0]
    start, is_real = plan.start + accepted + 1, plan.count > 0
    return TurnEnd(
        accepted=accepted,
        golden=golden,
        start=start,
        anchor=torch.where(is_real, start, 0),
        slot=table[:, SLOT].clamp(min=0),
        low=torch.where(is_real, table[:, CONTEXT], 0),
    )


def leave_turn(
    ops: Ops, plan: TurnPlan, end: TurnEnd, found: TurnFound, state: TurnState, form: TurnForm
) -> torch.Tensor:
    """Write where every sequence stands now; what the host wants to know in one buffer, uint8.

    The buffer holds int64 ids [T], start, count, accepted [R], drafts [R, B], then float32 raw and processed
    [T], confidences [R, B]. Drafts that were not made keep old tokens, and nobody is sure of them.
    """
    before, number = form.history - 1, torch.arange(1, form.history, device=end.start.device)
    line = plan.line.gather(1, end.accepted[:, None] + number) if before else plan.line[:, :0]
    state.start[plan.place] = end.start
    known = torch.cat([line, end.golden[:, None], found.drafts], 1)
    state.line[plan.place, : known.shape[1]] = known
    size = found.drafts.shape[1]
    if size:
        sure = torch.zeros_like(state.sure[plan.place])
        sure[:, :size] = found.confidences
        state.sure[plan.place] = sure
    whole = torch.cat([found.ids, plan.start, plan.count, end.accepted, found.drafts.flatten()])
    real = torch.cat([found.raw, found.processed, found.confidences.flatten()])
    return torch.cat([whole.view(torch.uint8), real.view(torch.uint8)])


class Turns:
    """Gives a kernel set turns as methods."""

    plan_turn = plan_turn
    end_turn = end_turn
    leave_turn = leave_turn
