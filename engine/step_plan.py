"""Plans one forward step in numpy: packed rows of chunks of sequences, the records they read and write.

No torch, so that planning can be checked for thousands of shapes without loading it.

Window latents of a step live in one buffer per layer: first the histories, loaded from the rings of the
sequences, then one row per row of the step. Compressed entries of a step live in one run per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deepinfer.engine.api import PrefillMode
from deepinfer.engine.prefill import PrefillRule

Int64 = npt.NDArray[np.int64]
BLOCK_TOKENS = 128
"""Tokens of a cache block; a layer that owns compressed entries keeps 128 / ratio of them in it."""


class ComingIds(Protocol):
    """Drafted ids."""

    @property
    def tokens(self) -> Int64:
        """int64 [B], as soon as they are there."""


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
        num_drafts: how many of the last positions hold drafts; planning treats them as any other.
        drafts: who knows their ids, perhaps not yet; None if ``token_ids`` has them.
    """

    token_ids: Int64
    start: int
    end: int
    prompt_length: int
    slot: int
    blocks: Int64
    num_drafts: int = 0
    drafts: ComingIds | None = None

    def fill(self) -> None:
        """Write the ids of drafts behind the known ones."""
        if self.drafts is not None:
            self.token_ids[self.end - self.num_drafts : self.end] = self.drafts.tokens[: self.num_drafts]


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
        history: n, ids that a row's Engram hash needs, its own included.
        encoder: all rows.
        kept: int64 [T'], which of them the decoder layers compute.
        decoder: those rows with their own window; the very object ``encoder`` in mode off.
    """

    chunks: tuple[Chunk, ...]
    history: int
    encoder: PlannedRows
    kept: Int64
    decoder: PlannedRows

    @cached_property
    def recent_ids(self) -> Int64:
        """int64 [T, n], own id first, then the ids before it, -1 before the start (Engram history).

        Nothing else of a plan needs ids, so drafts may be on their way until this is asked for.
        """
        for chunk in self.chunks:
            chunk.fill()
        return _recent(self.chunks, self.encoder.chunk, self.history)

    @property
    def token_ids(self) -> Int64:
        """int64 [T]."""
        return self.recent_ids[:, 0]

    def entries(self, ratio: int) -> EntryMap:
        """Entries of every sequence up to the end of its chunk, for sources of this ratio."""
        counts = np.array([chunk.end // ratio for chunk in self.chunks], np.int64)
        tables = [chunk.blocks for chunk in self.chunks]
        first_block = np.repeat(_starts(np.array([len(table) for table in tables], np.int64)), counts)
        entries, per_block = _ragged(np.zeros_like(counts), counts), BLOCK_TOKENS // ratio
        blocks = np.concatenate(tables)[first_block + entries // per_block]
        return EntryMap(records=blocks * per_block + entries % per_block, base=_starts(counts))


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold ``num_tokens`` positions."""
    return -(-num_tokens // BLOCK_TOKENS)


def entry_records(blocks: Int64, entries: Int64, ratio: int) -> Int64:
    """Record number of each entry of one sequence: ``block * (128 / ratio) + place``."""
    per_block = BLOCK_TOKENS // ratio
    records: Int64 = blocks[entries // per_block] * per_block + entries % per_block
    return records


def _starts(counts: Int64) -> Int64:
    """Where each run begins when runs of these lengths lie one after the other."""
    return np.cumsum(counts) - counts


def _ragged(first: Int64, counts: Int64) -> Int64:
    """Runs ``first[i], first[i] + 1, ...`` of ``counts[i]`` numbers, one after the other."""
    return np.arange(counts.sum(), dtype=np.int64) + np.repeat(first - _starts(counts), counts)


@dataclass(frozen=True)
class _Packed:
    """Chunks as columns, int64 [chunks]."""

    start: Int64
    end: Int64
    prompt_length: Int64
    slot: Int64

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> _Packed:
        table = np.array([(c.start, c.end, c.prompt_length, c.slot) for c in chunks], np.int64)
        return cls(*table.T)


def _plan_rows(
    packed: _Packed, first: Int64, positions: Int64, owner: Int64, low: Int64, kept_from: Int64, window: int
) -> PlannedRows:
    """Rows from ``first[i]`` to the end of each chunk; the window of row r begins at position ``low[r]``.

    Args:
        first: [chunks], the chunk's end if it has no row.
        positions: [T], the rows' positions.
        owner: [T], the rows' chunks.
        low: [T], ascending within a chunk, so that its first row needs the oldest history.
        kept_from: [chunks], first position that rings remember.
        window: sliding window W.
    """
    counts = packed.end - first
    offset = _starts(counts)
    oldest, with_rows = first.copy(), counts > 0
    oldest[with_rows] = np.minimum(first[with_rows], low[offset[with_rows]])
    num_history = first - oldest
    in_history, in_step = _starts(num_history) - oldest, num_history.sum() + offset - first
    back = np.arange(1 - window, 1, dtype=np.int64)[None]
    places = (positions + in_step[owner])[:, None] + back
    # few rows are so near the beginning of their chunk, or of what they see, that their window is no run
    edge = np.flatnonzero(positions - window + 1 < np.maximum(first[owner], low))
    own, wanted = owner[edge, None], positions[edge, None] + back
    found = wanted + np.where(wanted < first[own], in_history[own], in_step[own])
    places[edge] = np.where(wanted >= low[edge, None], found, -1)
    return PlannedRows(
        positions=positions,
        chunk=owner,
        window=places,
        history_slot=np.repeat(packed.slot, num_history),
        history_position=_ragged(oldest, num_history),
        kept=positions >= kept_from[owner],
        last=packed.end[owner] - 1,
    )


def _recent(chunks: Sequence[Chunk], owner: Int64, depth: int) -> Int64:
    """Each row's id, then the ``depth - 1`` ids before it, -1 before its sequence: int64 [T, depth]."""
    margin = depth - 1
    near = np.full(len(owner) + margin * len(chunks), -1, np.int64)
    place = 0
    for chunk in chunks:
        place += margin
        first = max(0, chunk.start - margin)
        size = chunk.end - chunk.start
        near[place - (chunk.start - first) : place + size] = chunk.token_ids[first : chunk.end]
        place += size
    own = np.arange(len(owner)) + margin * (owner + 1)
    recent: Int64 = near[own[:, None] - np.arange(depth)[None]]
    return recent


def plan_step(chunks: Sequence[Chunk], rule: PrefillRule, history: int) -> StepPlan:
    """Pack chunks in the order given.

    Args:
        chunks: at least one; at most one per sequence.
        rule: prefill mode of the step.
        history: ids an Engram hash needs, own one included (1 if the model has no Engram).
    """
    packed = _Packed.of(chunks)
    counts = packed.end - packed.start
    owner = np.repeat(np.arange(len(chunks)), counts)
    positions = _ragged(packed.start, counts)
    first = rule.decoder_starts(packed.start, packed.end, packed.prompt_length)
    kept = _ragged(_starts(counts) + first - packed.start, packed.end - first)
    kept_owner, kept_positions = owner[kept], positions[kept]
    encoder_low = rule.encoder_window_low(positions)
    decoder_low = rule.decoder_window_low(kept_positions, packed.prompt_length[kept_owner])
    from_start, low = np.zeros_like(first), rule.lows(packed.prompt_length)
    encoder = _plan_rows(packed, packed.start, positions, owner, encoder_low, from_start, rule.window)
    decoder = encoder  # without truncation both halves of the model see the same
    if rule.mode is not PrefillMode.OFF:
        decoder = _plan_rows(packed, first, kept_positions, kept_owner, decoder_low, low, rule.window)
    return StepPlan(
        chunks=tuple(chunks),
        history=history,
        encoder=encoder,
        kept=kept,
        decoder=decoder,
    )
