"""Where the sequences of a turn stand: one program gives each its rows, then each looks back on its window.

See ``turn_plan``. Legend: R sequences, q most rows of a sequence, W window, n ids of an Engram hash.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, kernel, launch, power_of_two
from deepinfer.kernels.turn_operands import DRAFTS, FROM_DEVICE, LIMIT, SLOT, START, TurnForm, TurnState


@dataclass(frozen=True)
class Placed:
    """See ``TurnPlan``."""

    place: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    first: torch.Tensor
    line: torch.Tensor
    history: torch.Tensor


@kernel
def _starts_kernel(
    table: Ptr,
    budget: Ptr,
    left_starts: Ptr,
    out: Ptr,
    num_items: int,
    stride: int,
    budget_stride: int,
    nobody: int,
    COLUMNS: tl.constexpr,
    FROM: tl.constexpr,
    WIDE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """All sequences at once; ``COLUMNS`` are those of slot, start and limit."""
    if EARLY:
        after_launches_before()
    number = tl.arange(0, SEQUENCES).to(tl.int64)
    inside = number < num_items
    own = table + number * stride
    slot = tl.load(own + COLUMNS[0], inside, other=-1)
    place = tl.where(slot >= 0, slot, nobody)
    start = tl.load(own + COLUMNS[1], inside, other=0)
    left = tl.load(left_starts + place, inside, other=0)
    start = tl.where(start == FROM, left, start)
    drafts = tl.load(budget + number * budget_stride, inside, other=0)
    limit = tl.load(own + COLUMNS[2], inside, other=0)
    count = tl.where(inside, tl.maximum(tl.minimum(drafts + 1, limit - start), 0), 0)
    first = number
    if WIDE:
        first = tl.cumsum(count, axis=0) - count
    tl.store(out + number, place, inside)
    tl.store(out + num_items + number, start, inside)
    tl.store(out + 2 * num_items + number, count, inside)
    tl.store(out + 3 * num_items + number, first, inside)


@kernel
def _history_kernel(
    table: Ptr,
    places: Ptr,
    starts: Ptr,
    counts: Ptr,
    left_lines: Ptr,
    line: Ptr,
    history: Ptr,
    stride: int,
    left_stride: int,
    first_id: int,
    ring: int,
    COLUMNS: tl.constexpr,
    FROM: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_LANES: tl.constexpr,
    MARGIN: tl.constexpr,
    LANES: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One sequence: its ids, and the ring records before it."""
    if EARLY:
        after_launches_before()
    number = tl.program_id(0).to(tl.int64)
    own = table + number * stride
    slot, start = tl.load(own + COLUMNS[0]), tl.load(starts + number)
    k = tl.arange(0, SIZE_LANES)
    is_left = tl.load(own + COLUMNS[1]) == FROM
    theirs = left_lines + tl.load(places + number) * left_stride + k
    ids = tl.load(theirs, (k < SIZE) & is_left, other=0)
    ids += tl.load(own + first_id + k, (k < SIZE) & (is_left == 0), other=0)
    tl.store(line + number * SIZE + k, ids, k < SIZE)
    lane = tl.arange(0, LANES)
    before = start - MARGIN + lane
    exists = (before >= 0) & (tl.load(counts + number) > 0)
    record = slot * ring + tl.maximum(before, 0) % ring
    tl.store(history + number * MARGIN + lane, tl.where(exists, record, -1), lane < MARGIN)


def place_sequences(
    table: torch.Tensor, state: TurnState, form: TurnForm, budget: torch.Tensor | None
) -> Placed:
    """``budget`` int64 [R] are the drafts of each, None if the table says it."""
    count, margin, size = form.num_sequences, form.window - 1, form.history - 1 + form.width
    found = torch.empty(4, count, dtype=torch.int64, device=table.device)
    drafts = table[:, DRAFTS] if budget is None else budget
    launch(
        _starts_kernel,
        (1,),
        *(table, drafts, state.start, found),
        *(count, table.stride(0), drafts.stride(0), len(state.start) - 1),
        COLUMNS=(SLOT, START, LIMIT),
        FROM=FROM_DEVICE,
        WIDE=form.width > 1,
        SEQUENCES=power_of_two(count),
    )
    place, start, rows, first = found.unbind(0)
    line = torch.empty(count, size, dtype=torch.int64, device=table.device)
    history = torch.empty(count * margin, dtype=torch.int64, device=table.device)
    launch(
        _history_kernel,
        (count,),
        *(table, place, start, rows, state.line, line, history),
        *(table.stride(0), state.line.stride(0), form.first_id, form.ring),
        num_warps=1,
        COLUMNS=(SLOT, START),
        FROM=FROM_DEVICE,
        SIZE=size,
        SIZE_LANES=power_of_two(size),
        MARGIN=margin,
        LANES=power_of_two(max(margin, 1)),
    )
    return Placed(place, start, rows, first, line, history)
