"""Turns of many forms with random tables: what the device kernels are compared and compiled on."""

from __future__ import annotations

import numpy as np
import torch

from deepinfer.kernels.interface import Ops
from deepinfer.kernels.turn_operands import (
    CONTEXT,
    DRAFTS,
    FROM_DEVICE,
    LIMIT,
    LOW,
    NUM_FIXED,
    SLOT,
    START,
    TurnForm,
    TurnFound,
    TurnState,
)

BLOCK = 5


def form_of(
    sequences: int, rows: int, width: int, history: int, has_low: bool, is_shared_out: bool = False
) -> TurnForm:
    first_id = NUM_FIXED + 2
    return TurnForm(
        num_sequences=sequences, num_rows=rows, width=width, history=history, num_blocks=8, block_tokens=32,
        entries=((1, 512, 256), (2, 300, 128)), first_base=NUM_FIXED, first_id=first_id,
        first_block=first_id + history - 1 + width, window=12, ring=40, draft_ring=40 if width > 1 else 0,
        half_depth=3, has_low=has_low, is_shared_out=is_shared_out,
    )  # fmt: skip


def case(form: TurnForm, draw: np.random.Generator, num_real: int) -> tuple[torch.Tensor, TurnState]:
    """Some sequences go on from the device, some are at their end, the rest of the bucket is padding."""
    table = np.zeros((form.num_sequences, form.first_block + form.num_blocks), np.int64)
    table[:, SLOT] = -1
    slots = draw.permutation(form.num_sequences + 2)
    table[:num_real, :NUM_FIXED] = draw.integers(0, 1 << 62, (num_real, NUM_FIXED))
    table[:num_real, SLOT] = slots[:num_real]
    starts = draw.integers(0, 200, num_real)
    table[:num_real, START] = np.where(draw.random(num_real) < 0.5, FROM_DEVICE, starts)
    table[:num_real, DRAFTS] = draw.integers(0, form.width, num_real)
    table[:num_real, LIMIT] = starts + draw.integers(0, 9, num_real)
    table[:num_real, LOW] = table[:num_real, CONTEXT] = np.maximum(0, starts - draw.integers(0, 12, num_real))
    for number, (ratio, _, _) in enumerate(form.entries):
        counts = (starts + form.width) // ratio
        table[:num_real, form.first_base + number] = np.cumsum(counts) - counts
        table[num_real:, form.first_base + number] = counts.sum()
    table[:num_real, form.first_id : form.first_block] = draw.integers(
        -1, 90, (num_real, form.first_block - form.first_id)
    )
    table[:num_real, form.first_block :] = draw.integers(0, 50, (num_real, form.num_blocks))
    state = TurnState.empty(form.num_sequences + 2, form.history, BLOCK, torch.device("cpu"))
    state.start[table[:num_real, SLOT]] = torch.from_numpy(starts)
    state.line.copy_(torch.from_numpy(draw.integers(0, 90, tuple(state.line.shape))))
    state.sure.copy_(torch.from_numpy(draw.random(tuple(state.sure.shape)).astype(np.float32)))
    return torch.from_numpy(table), state


FORMS: dict[str, tuple[TurnForm, int, int]] = {
    "plain": (form_of(4, 4, 1, 3, False), 3, 0),
    "plain, low": (form_of(2, 2, 1, 3, True), 2, 2),
    "one, drafted": (form_of(1, 6, 6, 3, True), 1, 2),
    "drafted": (form_of(8, 32, 6, 4, False), 6, 5),
    "no history": (form_of(2, 12, 6, 1, False), 2, 5),
    "shared out": (form_of(8, 24, 6, 3, True, True), 7, 5),
}
"""Form, sequences that are no padding, drafts that the turn makes of each."""


def play_all(ops: Ops, reference: Ops) -> None:
    """Every form through every op of a turn, each on what ``reference`` gives: ``ops`` may only compile."""
    for form, num_real, block in FORMS.values():
        table, state = case(form, np.random.default_rng(0), num_real)
        ops.plan_turn(table, state, form)
        plan, ids = reference.plan_turn(table, state, form), torch.zeros(form.num_rows, dtype=torch.int64)
        ops.end_turn(table, plan, ids, form)
        end = reference.end_turn(table, plan, ids, form)
        none, drafts = torch.zeros(form.num_rows), torch.zeros(form.num_sequences, block)
        found = TurnFound(ids=ids, raw=none, processed=none, drafts=drafts.long(), confidences=drafts)
        ops.leave_turn(plan, end, found, state, form)
