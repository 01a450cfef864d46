"""Turns hidden rows into scores, a bounded number of vocabulary rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.api import ScoreRequest, ScoreResult
from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.step_plan import Int64

HEAD_ROWS = 256
"""Rows of logits alive at once; each row is its own sum, so the number moves no bit."""


@dataclass(frozen=True)
class HiddenRows:
    """Normalised hidden rows that a step computed.

    Attributes:
        normed: float32 [T', D].
        sequence: int64 [T'], which sequence of the wave a row belongs to.
        positions: int64 [T'], its position.
    """

    normed: torch.Tensor
    sequence: Int64
    positions: Int64


class ScoreSheet:
    """Result arrays of one request, filled as its rows come."""

    def __init__(self, request: ScoreRequest, token_ids: Int64, first_valid: int, vocab_size: int) -> None:
        """``first_valid`` is the first position whose predicting row truncated prefill computes."""
        size = len(token_ids)
        self.request, self.token_ids = request, token_ids
        self.first = max(request.score_start, first_valid)
        self.logprobs = np.full(size, np.nan, np.float32)
        self.ranks = np.full(size, -1, np.int32)
        self.valid = np.zeros(size, np.bool_)
        top = request.num_top
        self.top_ids = np.full((size, top), -1, np.int32) if top else None
        self.top_logprobs = np.full((size, top), np.nan, np.float32) if top else None
        self.logits = np.full((size, vocab_size), np.nan, np.float32) if request.return_logits else None
        self.final_logits = np.empty(vocab_size, np.float32) if request.return_logits else None

    def result(self) -> ScoreResult:
        """The finished result."""
        return ScoreResult(
            request_id=self.request.request_id,
            token_ids=self.token_ids.astype(np.int32),
            logprobs=self.logprobs,
            ranks=self.ranks,
            valid=self.valid,
            top_ids=self.top_ids,
            top_logprobs=self.top_logprobs,
            logits=self.logits,
            final_logits=self.final_logits,
        )


def fill_sheets(model: Transformer, rows: HiddenRows, sheets: Sequence[ScoreSheet | None]) -> None:
    """Score every row of a step that some sheet wants; a sequence without a sheet wants none.

    Raises:
        NonFiniteError: a wanted row has a NaN or infinite logit; names the request and the position.
    """
    wanted = []
    for row, (sequence, position) in enumerate(
        zip(rows.sequence.tolist(), rows.positions.tolist(), strict=True)
    ):
        sheet = sheets[sequence]
        if sheet is None:
            continue
        is_last = position + 1 == len(sheet.token_ids)
        if (sheet.final_logits is not None) if is_last else position + 1 >= sheet.first:
            wanted.append(row)
    for start in range(0, len(wanted), HEAD_ROWS):
        _score_rows(model, rows, sheets, np.array(wanted[start : start + HEAD_ROWS], np.int64))


def _score_rows(
    model: Transformer, rows: HiddenRows, sheets: Sequence[ScoreSheet | None], picked: Int64
) -> None:
    logits = model.logits(rows.normed[torch.from_numpy(picked)])
    sequences, positions = rows.sequence[picked], rows.positions[picked]
    owners = [sheet for sheet in (sheets[s] for s in sequences.tolist()) if sheet is not None]
    targets = np.array(
        [
            o.token_ids[p + 1] if p + 1 < len(o.token_ids) else 0
            for o, p in zip(owners, positions.tolist(), strict=True)
        ],
        np.int64,
    )
    logprobs, ranks = model.ops.token_logprobs(logits, torch.from_numpy(targets))
    finite = torch.isfinite(logprobs)
    if not bool(finite.all()):
        bad = int((~finite).to(torch.uint8).argmax())
        raise NonFiniteError(
            f"{owners[bad].request.request_id}: the logits after position {positions[bad]} are not finite; "
            "weights or kernels are damaged, no comparison means anything"
        )
    for sequence in np.unique(sequences).tolist():
        mine = np.flatnonzero(sequences == sequence)
        _write(
            model, owners[int(mine[0])], logits, logprobs.numpy(), ranks.numpy(), mine, positions[mine] + 1
        )


def _write(
    model: Transformer,
    sheet: ScoreSheet,
    logits: torch.Tensor,
    logprobs: np.ndarray,
    ranks: np.ndarray,
    mine: Int64,
    at: Int64,
) -> None:
    """Copy rows ``mine`` of the batch to positions ``at`` of the sheet.

    Position S is the row after the last token.
    """
    if at[-1] == len(sheet.token_ids):
        if sheet.final_logits is not None:
            sheet.final_logits[:] = logits[int(mine[-1])].numpy()
        mine, at = mine[:-1], at[:-1]
    if len(mine) == 0:
        return
    sheet.logprobs[at], sheet.ranks[at], sheet.valid[at] = logprobs[mine], ranks[mine], True
    if sheet.logits is not None:
        sheet.logits[at] = logits.numpy()[mine]
    if sheet.top_ids is not None and sheet.top_logprobs is not None:
        some = logits[torch.from_numpy(mine)]
        ids = some.sort(dim=1, descending=True, stable=True).indices[:, : sheet.request.num_top]
        sheet.top_ids[at] = ids.numpy()
        sheet.top_logprobs[at] = model.ops.log_softmax(some).gather(1, ids).numpy()
