"""Turns hidden rows into scores, a bounded number of vocabulary rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deepinfer.engine.api import Float32Array, ScoreRequest, ScoreResult
from deepinfer.engine.errors import NonFiniteError
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.transfer import fetching, moved

_HEAD_ROWS = 256
_HEAD_BYTES = 1 << 26


def head_rows(device: torch.device, vocab_size: int) -> int:
    """Rows of logits alive at once; each row is its own sum, so the number moves no bit.

    A few stay in the caches of a CPU. A device waits for launches, so it gets as many as 64 MiB hold.
    """
    return _HEAD_ROWS if device.type == "cpu" else max(_HEAD_ROWS, _HEAD_BYTES // (4 * vocab_size))


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


def fill_sheets(
    model: Transformer,
    rows: HiddenRows,
    sheets: Sequence[ScoreSheet | None],
    candidates: Int64 | None = None,
) -> None:
    """Score every row of a step that some sheet wants; a sequence without a sheet wants none.

    ``candidates`` int64 [n] are the only rows looked at, all of them if None.

    Raises:
        NonFiniteError: a wanted row has a NaN or infinite logit; names the request and the position.
    """
    filling_sheets(model, rows, sheets, candidates)()


def filling_sheets(
    model: Transformer,
    rows: HiddenRows,
    sheets: Sequence[ScoreSheet | None],
    candidates: Int64 | None = None,
) -> Callable[[], None]:
    """Begin to score rows as ``fill_sheets`` does; what comes back waits for the device and fills sheets.

    ``rows`` may be written over by later work on the device.
    """
    numbers = np.arange(len(rows.positions)) if candidates is None else candidates
    wanted, targets = np.zeros(len(numbers), np.bool_), np.zeros(len(numbers), np.int64)
    for sequence, mine in _by_sequence(rows.sequence[numbers]):
        sheet, at = sheets[sequence], rows.positions[numbers[mine]] + 1
        if sheet is not None:
            is_last = at == len(sheet.token_ids)
            wanted[mine] = np.where(is_last, sheet.final_logits is not None, at >= sheet.first)
            targets[mine] = np.where(is_last, 0, sheet.token_ids[np.where(is_last, 0, at)])
    if not wanted.any():
        return lambda: None
    return _score_rows(model, rows, sheets, numbers[wanted], targets[wanted])


def _score_rows(
    model: Transformer, rows: HiddenRows, sheets: Sequence[ScoreSheet | None], picked: Int64, targets: Int64
) -> Callable[[], None]:
    """All parts are computed before the host waits for their log-probabilities, once."""
    where, asked = moved(
        {0: torch.from_numpy(picked), 1: torch.from_numpy(targets)}, model.ops.device
    ).values()
    sequences, positions = rows.sequence[picked], rows.positions[picked]
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    step = head_rows(model.ops.device, model.config.vocab_size)
    for start in range(0, len(picked), step):
        part = slice(start, start + step)
        logits = model.logits(rows.normed[where[part]])
        parts.append(model.ops.token_logprobs(logits, asked[part]))
        for sequence, mine in _by_sequence(sequences[part]):
            sheet = sheets[sequence]
            assert sheet is not None
            _write_rows(model, sheet, logits, mine, positions[part][mine] + 1)
    fetch = fetching(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def fill() -> None:
        logprobs, ranks = (found.numpy() for found in fetch())
        _refuse_non_finite(logprobs, sequences, positions, sheets)
        for sequence, mine in _by_sequence(sequences):
            sheet = sheets[sequence]
            assert sheet is not None
            at = positions[mine] + 1
            mine, at = mine[at < len(sheet.token_ids)], at[at < len(sheet.token_ids)]
            sheet.logprobs[at], sheet.ranks[at], sheet.valid[at] = logprobs[mine], ranks[mine], True

    return fill


def _by_sequence(sequences: Int64) -> Iterator[tuple[int, Int64]]:
    """Each sequence with its places int64 [n] in ``sequences``."""
    for sequence in np.unique(sequences).tolist():
        yield sequence, np.flatnonzero(sequences == sequence)


def _refuse_non_finite(
    logprobs: Float32Array, sequences: Int64, positions: Int64, sheets: Sequence[ScoreSheet | None]
) -> None:
    finite = np.isfinite(logprobs)
    if finite.all():
        return
    bad = int((~finite).argmax())
    sheet = sheets[int(sequences[bad])]
    assert sheet is not None
    raise NonFiniteError(
        f"{sheet.request.request_id}: the logits after position {positions[bad]} are not finite; "
        "weights or kernels are damaged, no comparison means anything"
    )


def _write_rows(model: Transformer, sheet: ScoreSheet, logits: torch.Tensor, mine: Int64, at: Int64) -> None:
    """Copy what was asked beyond log-probabilities of rows ``mine`` of the batch to positions ``at``.

    Position S is the row after the last token.
    """
    if at[-1] == len(sheet.token_ids):
        if sheet.final_logits is not None:
            sheet.final_logits[:] = logits[int(mine[-1])].cpu().numpy()
        mine, at = mine[:-1], at[:-1]
    if len(mine) == 0 or (sheet.logits is None and sheet.top_ids is None):
        return
    some = logits[moved(torch.from_numpy(mine), logits.device)]
    if sheet.logits is not None:
        sheet.logits[at] = some.cpu().numpy()
    if sheet.top_ids is not None and sheet.top_logprobs is not None:
        ids = some.sort(dim=1, descending=True, stable=True).indices[:, : sheet.request.num_top]
        sheet.top_ids[at] = ids.cpu().numpy()
        sheet.top_logprobs[at] = model.ops.log_softmax(some).gather(1, ids).cpu().numpy()
