"""Plans one forward step in numpy: packed rows of chunks of sequences, the records they read and write.

No torch, so that planning can be checked for thousands of shapes without loading it.

Window latents of a step live in one buffer per layer: first the histories, loaded from the rings of the
sequences, then one row per row of the step. Compressed entries of a step live in one run per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.prefill import PrefillRule

Int64 = npt.NDArray[np.int64]
BLOCK_TOKENS = 128
"""Tokens of a cache block; a layer that owns compressed entries keeps 128 / ratio of them in it."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Positions ``[start, end)`` of one sequence.

    Attributes:
        token_ids: the whole sequence, int64 [S]; only ids before ``end`` are read.
        start: first position of the chunk; everything before it is in the caches already.
        end: one past the last position.
        prompt_length: N of the prefill mode.
        slot: the sequence's state slot.
        blocks: int64 [>= ceil(end / 128)], its block table.
    """

    token_ids: Int64
    start: int
    end: int
    prompt_length: int
    slot: int
    blocks: Int64


@dataclass(frozen=True, kw_only=True)
class PlannedRows:
    """Packed rows of one half of the model (encoder, or decoder after truncation).

    Attributes:
        positions: int64 [T].
        chunk: int64 [T], which chunk of the step a row belongs to.
        window: int64 [T, W], rows of the window buffer in ascending position, -1 where invisible.
        history_slot, history_position: int64 [H], what the rings contribute to the head of the buffer.
        kept: bool [T], whether the row belongs to what rings remember (not before the kept rows of a prompt).
        last: int64 [T], last position of the row's chunk; a ring stores only what fits before it.
    """

    positions: Int64
    chunk: Int64
    window: Int64
    history_slot: Int64
    history_position: Int64
    kept: npt.NDArray[np.bool_]
    last: Int64


@dataclass(frozen=True, kw_only=True)
class EntryMap:
    """Compressed entries that exist after the step, sequence by sequence.

    Attributes:
        records: int64 [N], record of each entry in the pools of that ratio.
        base: int64 [chunks], where the run of each sequence begins.
    """

    records: Int64
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

    def entries(self, ratio: int) -> EntryMap:
        """Entries of every sequence up to the end of its chunk, for sources of this ratio."""
        runs = [entry_records(chunk.blocks, np.arange(chunk.end // ratio), ratio) for chunk in self.chunks]
        base = np.cumsum([0] + [len(run) for run in runs])[:-1]
        return EntryMap(records=np.concatenate(runs), base=base.astype(np.int64))


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold ``num_tokens`` positions."""
    return -(-num_tokens // BLOCK_TOKENS)


def entry_records(blocks: Int64, entries: Int64, ratio: int) -> Int64:
    """Record number of each entry of one sequence: ``block * (128 / ratio) + place``."""
    per_block = BLOCK_TOKENS // ratio
    records: Int64 = blocks[entries // per_block] * per_block + entries % per_block
    return records


def _plan_rows(
    chunks: Sequence[Chunk],
    positions: Sequence[Int64],
    low: Sequence[Int64],
    kept_from: Sequence[int],
    window: int,
) -> PlannedRows:
    """Rows ``positions[i]`` of each chunk, contiguous up to its end; windows begin at ``low[i]``."""
    history, rows = [], []
    num_history = 0
    for chunk, own, seen in zip(chunks, positions, low, strict=True):
        first = int(own[0]) if len(own) else chunk.end
        start = min(first, int(seen.min())) if len(own) else chunk.end
        history.append(np.arange(start, first, dtype=np.int64))
        rows.append((num_history, start, first))
        num_history += first - start
    windows, is_kept, offset = [], [], num_history
    for (before, start, first), own, seen, kept in zip(rows, positions, low, kept_from, strict=True):
        wanted = own[:, None] + np.arange(1 - window, 1, dtype=np.int64)[None]
        place = np.where(wanted < first, before + wanted - start, offset + wanted - first)
        windows.append(np.where(wanted >= seen[:, None], place, -1))
        is_kept.append(own >= kept)
        offset += len(own)
    owner = np.repeat(np.arange(len(chunks)), [len(own) for own in positions])
    slots = [np.full(len(run), chunk.slot, np.int64) for run, chunk in zip(history, chunks, strict=True)]
    return PlannedRows(
        positions=np.concatenate(positions),
        chunk=owner,
        window=np.concatenate(windows),
        history_slot=np.concatenate(slots),
        history_position=np.concatenate(history),
        kept=np.concatenate(is_kept),
        last=np.array([chunk.end - 1 for chunk in chunks], np.int64)[owner],
    )


def _recent(token_ids: Int64, start: int, end: int, depth: int) -> Int64:
    first = max(0, start - depth + 1)
    missing = depth - 1 - (start - first)
    near = np.concatenate([np.full(missing, -1, np.int64), token_ids[first:end]])
    columns = [near[depth - 1 - back : len(near) - back] for back in range(depth)]
    return np.stack(columns, axis=1)


def plan_step(chunks: Sequence[Chunk], rule: PrefillRule, history: int) -> StepPlan:
    """Pack chunks in the order given.

    Args:
        chunks: at least one; at most one per sequence.
        rule: prefill mode of the step.
        history: ids an Engram hash needs, own one included (1 if the model has no Engram).
    """
    positions = [np.arange(chunk.start, chunk.end, dtype=np.int64) for chunk in chunks]
    encoder_low = [rule.encoder_window_low(own) for own in positions]
    decoder = [rule.decoder_positions(c.start, c.end, c.prompt_length) for c in chunks]
    decoder_low = [
        rule.decoder_window_low(own, c.prompt_length) for own, c in zip(decoder, chunks, strict=True)
    ]
    first = np.cumsum([0] + [len(own) for own in positions])[:-1]
    kept = [own - c.start + at for own, c, at in zip(decoder, chunks, first.tolist(), strict=True)]
    low = [rule.low(chunk.prompt_length) for chunk in chunks]
    return StepPlan(
        chunks=tuple(chunks),
        token_ids=np.concatenate([c.token_ids[c.start : c.end] for c in chunks]),
        recent_ids=np.concatenate([_recent(c.token_ids, c.start, c.end, history) for c in chunks]),
        encoder=_plan_rows(chunks, positions, encoder_low, [0] * len(chunks), rule.window),
        kept=np.concatenate(kept),
        decoder=_plan_rows(chunks, decoder, decoder_low, low, rule.window),
    )
