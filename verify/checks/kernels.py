"""Is every op independent of the rows beside it: real operands, replayed on parts of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepinfer.engine.api import ScoreRequest
from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext
from deepinfer.verify.engine_subject import EngineSubject
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.tally import Tally

NAME = "kernels"
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 97)
NUM_ROWS = 97


def run(context: CheckContext) -> CheckResult:
    """Capture every op of a forward pass, then run each on fewer of its rows and compare the rows."""
    from deepinfer.engine.op_replay import OpCall, capture, row_ranges  # torch

    subject = context.base
    if not isinstance(subject, EngineSubject):
        return CheckResult(name=NAME, status=Status.NOT_APPLICABLE, detail="this engine shows no ops")
    calls: dict[tuple[Any, ...], OpCall] = {}
    sample = context.sample(0, NUM_ROWS)
    request = ScoreRequest(request_id="ops", token_ids=sample.token_ids, return_logits=True)
    subject.wrapped(capture(calls)).score([request])
    tally = Tally(NAME)
    ops = subject.llm.ops
    for call in calls.values():
        is_head = call.result[0].ndim == 2 and call.result[0].shape[1] == context.model.vocab_size
        sizes = context.size.pick((1, 8, 33), SIZES, SIZES)
        if is_head:
            sizes = context.size.pick((1, 33), (1, 7, 33), SIZES)
        context.progress(f"{NAME}: {call.name}")
        for low, high in row_ranges(call.num_rows, sizes):
            parts = call.on_rows(ops, low, high)
            case = f"{call.name} of {call.num_rows} rows against its rows {low} to {high - 1} alone"
            for number, (whole, part) in enumerate(zip(call.result, parts, strict=True)):
                left, right = whole[low:high].cpu().numpy(), part.cpu().numpy()
                tally.arrays(case, f"output {number} of {call.name}", left, right)
                tally.num_inspected += 1
            tally.num_comparisons += (high - low) * is_head
            if is_head and not np.isfinite(parts[0].cpu().numpy()).all():
                tally.block(f"{case}: logits are not finite")
    names = sorted({call.name for call in calls.values()})
    return tally.result(f"{len(calls)} calls of {len(names)} ops: rows alone = rows together")


CHECK = Check(
    name=NAME,
    about="every op of a real forward pass, replayed on parts of its rows, gives the bytes of those rows",
    run=run,
)
