"""Plans one forward step in numpy: packed rows of chunks of sequences, the slots they read and write.

No torch, so that planning can be checked for thousands of shapes without loading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.prefill import PrefillRule, window_slots

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Positions ``[start, end)`` of one sequence.

    Attributes:
        token_ids: the whole sequence, int64 [S]; only ids before ``end`` are read.
        start: first position of the chunk; everything before it is in the caches already.
        end: one past the last position.
        prompt_length: N of the prefill mode.
        sequence: number of the sequence in the cache pools.
        base: pool row of its position 0.
    """

    token_ids: Int64
    start: int
    end: int
    prompt_length: int
    sequence: int
    base: int


@dataclass(frozen=True, kw_only=True)
class PlannedRows:
    """Packed rows of one half of the model (encoder, or decoder after truncation).

    Attributes:
        positions: int64 [T].
        slots: int64 [T], window pool row that each row writes.
        window: int64 [T, W], window pool rows that it reads, -1 where invisible.
        base: int64 [T], pool row of position 0 of its sequence.
    """

    positions: Int64
    slots: Int64
    window: Int64
    base: Int64


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Everything a forward pass needs to know about its rows.

    Attributes:
        chunks: the sequences' chunks in packed order.
        token_ids: int64 [T].
        recent_ids: int64 [T, n], own id first, then the ids before it, -1 before the start (Engram history).
        encoder: all rows.
        kept: int64 [T'], which of them the decoder layers compute.
        decoder: those rows with their own window.
    """

    chunks: tuple[Chunk, ...]
    token_ids: Int64
    recent_ids: Int64
    encoder: PlannedRows
    kept: Int64
    decoder: PlannedRows


def _rows(positions: Int64, base: Int64, low: Int64, window: int) -> PlannedRows:
    slots = window_slots(positions, low, base, window)
    return PlannedRows(positions=positions, slots=base + positions, window=slots, base=base)


def _recent(token_ids: Int64, start: int, end: int, depth: int) -> Int64:
    padded = np.concatenate([np.full(depth - 1, -1, np.int64), token_ids[:end]])
    columns = [padded[depth - 1 - back + start : depth - 1 - back + end] for back in range(depth)]
    return np.stack(columns, axis=1)


def plan_step(chunks: Sequence[Chunk], rule: PrefillRule, history: int) -> StepPlan:
    """Pack chunks in the order given.

    Args:
        chunks: at least one; at most one per sequence.
        rule: prefill mode of the step.
        history: ids an Engram hash needs, own one included (1 if the model has no Engram).
    """
    positions = [np.arange(chunk.start, chunk.end, dtype=np.int64) for chunk in chunks]
    base = [np.full(len(p), chunk.base, np.int64) for p, chunk in zip(positions, chunks, strict=True)]
    first = np.cumsum([0] + [len(p) for p in positions])
    kept, decoder_positions, decoder_base, decoder_low = [], [], [], []
    for offset, chunk in zip(first.tolist(), chunks, strict=False):
        mine = rule.decoder_positions(chunk.start, chunk.end, chunk.prompt_length)
        kept.append(mine - chunk.start + offset)
        decoder_positions.append(mine)
        decoder_base.append(np.full(len(mine), chunk.base, np.int64))
        decoder_low.append(rule.decoder_window_low(mine, chunk.prompt_length))
    everywhere = np.concatenate(positions)
    return StepPlan(
        chunks=tuple(chunks),
        token_ids=np.concatenate([c.token_ids[c.start : c.end] for c in chunks]),
        recent_ids=np.concatenate([_recent(c.token_ids, c.start, c.end, history) for c in chunks]),
        encoder=_rows(everywhere, np.concatenate(base), rule.encoder_window_low(everywhere), rule.window),
        kept=np.concatenate(kept),
        decoder=_rows(
            np.concatenate(decoder_positions),
            np.concatenate(decoder_base),
            np.concatenate(decoder_low),
            rule.window,
        ),
    )
