"""Plans in numpy which cache records a step reads and writes; continues ``step_plan``, without torch.

Everything the layers need to know about places is worked out here once a step, so that no layer asks a device
for a value in order to plan.

Legend: T rows of the step, T' rows of one half of the model, H ring records read, N entries, n completed
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.prefill import visible_entries
from deepinfer.engine.step_plan import BLOCK_TOKENS, Chunk, Int64, PlannedRows, StepPlan, blocks_for


@dataclass(frozen=True, kw_only=True)
class StepLayout:
    """What planning has to know of a model and its caches.

    Attributes:
        history: ids an Engram hash needs, own one included (1 if the model has no Engram).
        ring: window positions that a slot remembers.
        draft_ring: the same in the draft stages, 0 without them.
        max_drafts: drafted rows that a step may take back from a sequence.
        ratios: compress ratios of the layers that own entries.
    """

    history: int
    ring: int
    draft_ring: int
    max_drafts: int
    ratios: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """Compression groups of one ratio: the entries that exist after the step and those it completes.

    Attributes:
        records: int64 [N], record of every entry of the step's sequences, sequence by sequence.
        base: int64 [chunks], where the run of each sequence begins in it.
        longest: entries of the longest sequence.
        completing: int64 [n], encoder rows whose token completes a group.
        starts: int64 [n], position of the first token of each of these groups.
        writes: int64 [n], record that the entry goes to.
        pairs: int64 [n, 2], ratio 2 only, else [n, 0]: both tokens of each group, as places in the rows of
            the step followed by the kept halves, among them a first one that came in an earlier step.
        waiting: int64 [k], where halves go that may be wanted later.
        halves: int64 [k], the row of each of them.
    """

    records: Int64
    base: Int64
    longest: int
    completing: Int64
    starts: Int64
    writes: Int64
    pairs: Int64
    waiting: Int64
    halves: Int64


def half_depth(max_drafts: int) -> int:
    """Halves of pairs that a slot keeps, if a step may take back up to ``max_drafts`` rows of a sequence."""
    return max_drafts // 2 + 1


def half_records(slots: Int64, positions: Int64, max_drafts: int) -> Int64:
    """Where the halves of tokens at even ``positions`` [n] of ``slots`` [n] are kept, int64 [n]."""
    depth = half_depth(max_drafts)
    return slots * depth + positions // 2 % depth


def plan_groups(plan: StepPlan, ratio: int, max_drafts: int) -> GroupPlan:
    """Groups of every layer that compresses ``ratio`` tokens to one entry."""
    rows, found = plan.encoder, plan.entries(ratio)
    completing = np.flatnonzero((rows.positions + 1) % ratio == 0)
    owner, positions = rows.chunk[completing], rows.positions[completing]
    pairs = np.empty((len(completing), 0), np.int64)
    waiting = halves = np.empty(0, np.int64)
    if ratio == 2:
        slots, starts = np.array([(c.slot, c.start) for c in plan.chunks], np.int64).T
        kept = half_records(slots[owner], positions - 1, max_drafts)
        first = np.where(positions == starts[owner], len(rows.positions) + kept, completing - 1)
        pairs = np.stack([first, completing], 1)
        # first tokens of a pair that are the last row of their sequence, now or after drafts are taken back
        halves = np.flatnonzero((rows.positions % 2 == 0) & (rows.positions >= rows.last - max_drafts))
        waiting = half_records(slots[rows.chunk[halves]], rows.positions[halves], max_drafts)
    return GroupPlan(
        records=found.records,
        base=found.base,
        longest=max(chunk.end // ratio for chunk in plan.chunks),
        completing=completing,
        starts=positions + 1 - ratio,
        writes=found.records[found.base[owner] + positions // ratio],
        pairs=pairs,
        waiting=waiting,
        halves=halves,
    )


@dataclass(frozen=True, kw_only=True)
class RowRecords:
    """Records behind the rows of one half of the model.

    Attributes:
        history: int64 [H], ring records that the window buffer begins with.
        ring: int64 [T'], ring record that each row writes; -1 for none.
        draft_ring: the same in the draft stages; [0] without them.
        base: ratio -> int64 [T'], where the entries of each row's sequence begin.
        visible: ratio -> int64 [T'], how many of them each row sees.
    """

    history: Int64
    ring: Int64
    draft_ring: Int64
    base: dict[int, Int64]
    visible: dict[int, Int64]


def plan_records(
    rows: PlannedRows, slots: Int64, layout: StepLayout, groups: dict[int, GroupPlan]
) -> RowRecords:
    """Records of ``rows``; ``slots`` int64 [chunks] is the state slot of each chunk's sequence."""
    own = slots[rows.chunk]
    ring = layout.ring
    return RowRecords(
        history=rows.history_slot * ring + rows.history_position % ring,
        ring=_written(rows, own, ring),
        draft_ring=_written(rows, own, layout.draft_ring) if layout.draft_ring else np.empty(0, np.int64),
        base={ratio: plan.base[rows.chunk] for ratio, plan in groups.items()},
        visible={ratio: visible_entries(rows.positions, ratio) for ratio in groups},
    )


def _written(rows: PlannedRows, slots: Int64, ring: int) -> Int64:
    """A ring stores what it remembers after the step, and only positions that prompts keep."""
    stored = rows.kept & (rows.positions > rows.last - ring)
    return np.where(stored, slots * ring + rows.positions % ring, -1)


def block_tables(chunks: Sequence[Chunk]) -> npt.NDArray[np.int32]:
    """Blocks of every sequence up to the end of its chunk, int32 [chunks, most]; 0 behind the last."""
    counts = [blocks_for(chunk.end) for chunk in chunks]
    tables = np.zeros((len(chunks), max(counts)), np.int32)
    for line, chunk, count in zip(tables, chunks, counts, strict=True):
        line[:count] = chunk.blocks[:count]
    return tables


def boundaries(rows: PlannedRows) -> Int64:
    """Rows int64 [b] whose token is the last of a cache block."""
    return np.flatnonzero((rows.positions + 1) % BLOCK_TOKENS == 0)
