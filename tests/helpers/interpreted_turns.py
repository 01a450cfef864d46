"""Turns planned and ended by the device kernels against torch, in Triton's interpreter: JSON.

A process of its own, because triton decides at its first import whether it interprets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from exact_interpreter import make_exact
from turn_cases import BLOCK, FORMS, case

make_exact()

from deepinfer.kernels import draft_chains  # noqa: E402
from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.draft_operands import BlockShape  # noqa: E402
from deepinfer.kernels.gpu import turn_ends, turn_plan  # noqa: E402
from deepinfer.kernels.gpu.backend import GpuOps  # noqa: E402
from deepinfer.kernels.turn_operands import TurnForm, TurnFound, TurnState  # noqa: E402

OPS = select_ops("reference", bf16=False)


def tensors(found: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for item in fields(found):
        value = getattr(found, item.name)
        for number, part in enumerate(value if isinstance(value, tuple) else (value,)):
            if is_dataclass(part):
                yield from ((f"{item.name}.{number}.{name}", x) for name, x in tensors(part))
            elif part is not None:
                yield f"{item.name}.{number}", part


def different(mine: Any, theirs: Any) -> list[str]:
    """Names of tensors that differ in shape or bytes."""
    pairs = list(zip(tensors(mine), tensors(theirs), strict=True))
    return [
        name
        for (name, a), (_, b) in pairs
        if a.shape != b.shape or a.contiguous().numpy().tobytes() != b.contiguous().numpy().tobytes()
    ]


def copied(state: TurnState) -> TurnState:
    return TurnState(state.start.clone(), state.line.clone(), state.sure.clone())


def compare(form: TurnForm, draw: np.random.Generator, num_real: int, block: int) -> list[str]:
    """Plan, end and hand-over of one turn."""
    table, state = case(form, draw, num_real)
    wanted, found = OPS.plan_turn(table, state, form), turn_plan.plan_turn(table, state, form)
    wrong = different(wanted, found)
    ids = torch.from_numpy(draw.integers(0, 90, form.num_rows))
    for number in range(num_real):  # most drafts are right, one of a sequence is not
        first, right = int(wanted.first[number]), int(draw.integers(0, form.width))
        for k in range(min(right, int(wanted.count[number]) - 1)):
            ids[first + k] = wanted.line[number, form.history + k]
    ends = OPS.end_turn(table, wanted, ids, form), turn_ends.end_turn(table, wanted, ids, form)
    wrong += different(*ends)
    reals = [torch.from_numpy(draw.random(form.num_rows).astype(np.float32)) for _ in range(2)]
    shape = (form.num_sequences, block)
    said = TurnFound(
        ids=ids, raw=reals[0], processed=reals[1],
        drafts=torch.from_numpy(draw.integers(0, 90, (shape[0], block + 1)))[:, 1:],
        confidences=torch.from_numpy(draw.random(shape).astype(np.float32)),
    )  # fmt: skip
    states = copied(state), copied(state)
    packed = [
        OPS.leave_turn(wanted, ends[0], said, states[0], form),
        turn_ends.leave_turn(wanted, ends[0], said, states[1], form),
    ]
    if not torch.equal(*packed):
        wrong.append("packed")
    # the last row of the state is nobody's
    kept = [TurnState(s.start[:-1], s.line[:-1], s.sure[:-1]) for s in states]
    return wrong + different(*kept)


def drafting(draw: np.random.Generator, vocabulary: int = 70) -> list[str]:
    """Rows of blocks, and their tokens; logits are often equal."""
    ops, count, shape = GpuOps(False, True, torch.device("cpu")), 3, BlockShape(
        size=BLOCK, window=12, noise_token_id=3, num_streams=4
    )  # fmt: skip
    real = lambda *size: torch.from_numpy(draw.standard_normal(size).astype(np.float32))  # noqa: E731
    golden, slots = torch.tensor([5, 0, 69]), torch.tensor([2, 0, 1])
    at, low = torch.tensor([3, 40, 25]), torch.tensor([0, 35, 25])
    given = golden, at, slots, low, real(vocabulary, 40), shape, 17
    wrong = different(draft_chains.draft_rows(ops, *given), ops.draft_rows(*given))
    head, sure = ops.pack_linear((real(vocabulary, 12) > 1).float()), ops.pack_linear(real(1, 52) * 9)
    base = (real(count, BLOCK, vocabulary) * 4).round() / 4
    states, embed = real(count, BLOCK, 40), real(vocabulary, 12).round()
    for kept in (1, 2, BLOCK):
        parts = golden, states[:, :kept], base[:, :kept], embed, head, sure
        pairs = zip(draft_chains.markov_decode(ops, *parts), ops.markov_decode(*parts), strict=True)
        wrong += [f"markov {kept} {i}" for i, (a, b) in enumerate(pairs) if not torch.equal(a, b)]
    return wrong


def main() -> None:
    """Plain turns, drafted ones, drafts that are shared out; full and filled up."""
    draw, wrong = np.random.default_rng(0), {}
    for name, (form, num_real, block) in FORMS.items():
        found = [bad for _ in range(2) for bad in compare(form, draw, num_real, block)]
        if found:
            wrong[name] = sorted(set(found))
    if found := drafting(draw):
        wrong["drafting"] = found
    form = FORMS["drafted"][0]
    table, state = case(form, draw, 6)
    late = replace(form, ring=form.ring + 1)
    control = different(turn_plan.plan_turn(table, state, form), turn_plan.plan_turn(table, state, late))
    print(json.dumps({"wrong": wrong, "control": control}))


if __name__ == "__main__":
    main()
