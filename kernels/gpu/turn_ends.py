"""What verification accepts and what a turn leaves, one program a sequence; see ``turn_chains``.

Legend: R sequences, T rows, q most rows of a sequence, n ids of an Engram hash, B drafts.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, kernel, launch
from deepinfer.kernels.turn_operands import CONTEXT, SLOT, TurnEnd, TurnForm, TurnFound, TurnPlan, TurnState


@kernel
def _end_kernel(
    table: Ptr,
    ids: Ptr,
    line: Ptr,
    starts: Ptr,
    counts: Ptr,
    firsts: Ptr,
    out: Ptr,
    num_rows: int,
    num_items: int,
    stride: int,
    COLUMNS: tl.constexpr,
    HISTORY: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One sequence; ``COLUMNS`` are those of slot and context."""
    if EARLY:
        after_launches_before()
    number = tl.program_id(0).to(tl.int64)
    start, count = tl.load(starts + number), tl.load(counts + number)
    first = tl.load(firsts + number)
    own, fed = table + number * stride, line + number * (HISTORY - 1 + WIDTH) + HISTORY
    accepted = start * 0
    for k in tl.static_range(WIDTH - 1):
        drawn = tl.load(ids + tl.minimum(first + k, num_rows - 1))
        is_right = (drawn == tl.load(fed + k)) & (k + 1 < count) & (accepted == k)
        accepted += is_right.to(tl.int64)
    golden = tl.load(ids + tl.minimum(first + accepted, num_rows - 1))
    start += accepted + 1
    is_real = count > 0
    tl.store(out + number, accepted)
    tl.store(out + num_items + number, golden)
    tl.store(out + 2 * num_items + number, start)
    tl.store(out + 3 * num_items + number, tl.where(is_real, start, 0))
    tl.store(out + 4 * num_items + number, tl.maximum(tl.load(own + COLUMNS[0]), 0))
    tl.store(out + 5 * num_items + number, tl.where(is_real, tl.load(own + COLUMNS[1]), 0))


def end_turn(table: torch.Tensor, plan: TurnPlan, ids: torch.Tensor, form: TurnForm) -> TurnEnd:
    """See ``Ops.end_turn``."""
    count = form.num_sequences
    out = torch.empty(6, count, dtype=torch.int64, device=table.device)
    launch(
        _end_kernel,
        (count,),
        *(table, ids, plan.line, plan.start, plan.count, plan.first, out),
        *(form.num_rows, count, table.stride(0)),
        num_warps=1,
        COLUMNS=(SLOT, CONTEXT),
        HISTORY=form.history,
        WIDTH=form.width,
    )
    accepted, golden, start, anchor, slot, low = out.unbind(0)
    return TurnEnd(accepted=accepted, golden=golden, start=start, anchor=anchor, slot=slot, low=low)


@kernel
def _leave_kernel(
    places: Ptr,
    starts: Ptr,
    counts: Ptr,
    line: Ptr,
    accepted: Ptr,
    golden: Ptr,
    ends: Ptr,
    ids: Ptr,
    raw: Ptr,
    processed: Ptr,
    drafts: Ptr,
    confidences: Ptr,
    left_starts: Ptr,
    left_lines: Ptr,
    left_sure: Ptr,
    whole: Ptr,
    real: Ptr,
    num_rows: int,
    num_items: int,
    draft_stride: int,
    left_stride: int,
    HISTORY: tl.constexpr,
    LINE: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """One row, or one sequence behind the rows; ``BLOCK`` drafts were made of ``MOST``."""
    if EARLY:
        after_launches_before()
    number = tl.program_id(0).to(tl.int64)
    if number < num_rows:
        tl.store(whole + number, tl.load(ids + number))
        tl.store(real + number, tl.load(raw + number))
        tl.store(real + num_rows + number, tl.load(processed + number))
    else:
        number -= num_rows
        place, kept = tl.load(places + number), tl.load(accepted + number)
        out = whole + num_rows + number
        tl.store(out, tl.load(starts + number))
        tl.store(out + num_items, tl.load(counts + number))
        tl.store(out + 2 * num_items, kept)
        tl.store(left_starts + place, tl.load(ends + number))
        theirs = left_lines + place * left_stride
        for k in tl.static_range(HISTORY - 1):
            tl.store(theirs + k, tl.load(line + number * LINE + kept + 1 + k))
        tl.store(theirs + HISTORY - 1, tl.load(golden + number))
        for k in tl.static_range(BLOCK):
            draft = tl.load(drafts + number * draft_stride + k)
            sure = tl.load(confidences + number * BLOCK + k)
            tl.store(theirs + HISTORY + k, draft)
            tl.store(left_sure + place * MOST + k, sure)
            tl.store(whole + num_rows + 3 * num_items + number * BLOCK + k, draft)
            tl.store(real + 2 * num_rows + number * BLOCK + k, sure)
        if BLOCK > 0:
            for k in tl.static_range(BLOCK, MOST):
                tl.store(left_sure + place * MOST + k, 0.0)


def leave_turn(
    plan: TurnPlan, end: TurnEnd, found: TurnFound, state: TurnState, form: TurnForm
) -> torch.Tensor:
    """See ``Ops.leave_turn``."""
    rows, count, block = form.num_rows, form.num_sequences, found.drafts.shape[1]
    split = 8 * (rows + (3 + block) * count)
    packed = torch.empty(split + 4 * (2 * rows + block * count), dtype=torch.uint8, device=found.ids.device)
    launch(
        _leave_kernel,
        (rows + count,),
        *(plan.place, plan.start, plan.count, plan.line, end.accepted, end.golden, end.start),
        *(found.ids, found.raw.contiguous(), found.processed.contiguous()),
        *(found.drafts, found.confidences.contiguous(), state.start, state.line, state.sure),
        *(packed[:split].view(torch.int64), packed[split:].view(torch.float32)),
        *(rows, count, found.drafts.stride(0), state.line.stride(0)),
        num_warps=1,
        HISTORY=form.history,
        LINE=plan.line.shape[1],
        BLOCK=block,
        MOST=state.sure.shape[1],
    )
    return packed
