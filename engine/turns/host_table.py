"""Fills the table of a turn on the host: what never changes for a sequence is kept between turns."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.scheduler import Share
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.buckets import row_bucket, sequence_bucket
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_plan import BLOCK_TOKENS, Int64
from deepinfer.engine.step_records import StepLayout
from deepinfer.engine.turns.table import TurnColumns, TurnShape
from deepinfer.kernels.turn_operands import (
    CONTEXT,
    DRAFTS,
    FLOOR,
    FROM_DEVICE,
    HEAT,
    LIMIT,
    LOW,
    NUM_FIXED,
    SAMPLE,
    SEED,
    SLOT,
    START,
    TOP_K,
)

_FEWEST_ENTRIES, _FEWEST_BLOCKS = 256, 4


class Drafted(NamedTuple):
    """What a turn does about drafts.

    Attributes:
        mode: for the next ones.
        num_made: of each sequence.
        num_rows: rows for those there are.
        is_shared_out: whether the device gives each sequence its share of these.
    """

    mode: Drafting
    num_made: int
    num_rows: int
    is_shared_out: bool


class HostTable:
    """Rows of all sequences that hold a slot, brought up to date turn by turn."""

    def __init__(self, num_slots: int, max_blocks: int, layout: StepLayout, rule: PrefillRule) -> None:
        """``max_blocks`` of a sequence."""
        self._layout, self._rule = layout, rule
        self._fixed = np.zeros((num_slots, NUM_FIXED), np.int64)
        self._blocks = np.zeros((num_slots, max_blocks), np.int64)
        self._limits = np.zeros(num_slots, np.int64)
        self._owners: list[Sequence | None] = [None] * num_slots
        self._held: list[list[int]] = [[]] * num_slots
        self._num_held = np.zeros(num_slots, np.int64)

    def of(
        self,
        shares: Items[Share],
        drafting: Drafting,
        num_drafted: int,
        vocab_size: int,
        is_left: Items[bool],
        num_shared_out: int | None,
        fit: Callable[[TurnShape], TurnShape] = lambda shape: shape,
    ) -> tuple[TurnShape, Int64]:
        """Shape and table of a turn.

        Args:
            shares: one known row each, and drafts.
            drafting: what the turn does for drafts.
            num_drafted: drafts that it makes of each sequence.
            vocab_size: V.
            is_left: which sequences go on from what the turn before left on the device, unknown here.
            num_shared_out: drafts of all together, if the device gives each its share; those of ``shares``
                are then the most of each.
            fit: gives the shape to play one in, which may be larger.
        """
        if len(shares) == 1:
            sequence, mine = shares[0][0], shares[0][2]
            self._refresh_new(sequence, vocab_size)
            total = mine if num_shared_out is None else num_shared_out
            drafts = Drafted(drafting, num_drafted, total, bool(num_shared_out))
            shape, table = self._of_one(sequence, mine, is_left[0], drafts, fit)
        else:
            columns = self._columns(shares, vocab_size, is_left)
            shape, table = self.filled(columns, drafting, num_drafted, num_shared_out, fit)
        if not all(is_left):
            target = table[: len(shares), shape.first_id : shape.first_block]
            self._write_ids(target, shares, is_left, shape)
        return shape, table

    def _columns(self, shares: Items[Share], vocab_size: int, is_left: Items[bool]) -> TurnColumns:
        sequences = [share[0] for share in shares]
        for sequence in sequences:
            self._refresh_new(sequence, vocab_size)
        ends = np.array([s.most_tokens for s in sequences])
        return TurnColumns(
            slots=np.array([s.slot for s in sequences]),
            drafts=np.array([share[2] for share in shares]),
            starts=np.where(np.array(is_left), FROM_DEVICE, ends - 1),
            ends=ends,
            contexts=np.array([s.draft_from for s in sequences]),
        )

    def filled(
        self,
        columns: TurnColumns,
        drafting: Drafting,
        num_drafted: int,
        num_shared_out: int | None,
        fit: Callable[[TurnShape], TurnShape] = lambda shape: shape,
    ) -> tuple[TurnShape, Int64]:
        """Shape and table of a turn, but for ids of sequences that are not left on the device; see ``of``.

        What never changes for the sequences, and their blocks, must be up to date (``refresh``).
        """
        slots, drafts, count = columns.slots, columns.drafts, len(columns.slots)
        reach = columns.ends + drafts
        total = int(drafts.sum()) if num_shared_out is None else num_shared_out
        asked = Drafted(drafting, num_drafted, total, bool(num_shared_out))
        sums = [int((reach // ratio).sum()) for ratio in self._layout.ratios]
        shape = fit(self._shape(count, asked, sums, int(reach.max()), int(self._num_held[slots].max())))
        table = np.zeros((shape.num_sequences, shape.num_columns), np.int64)
        table[:, SLOT] = -1
        mine = table[:count]
        mine[:, :NUM_FIXED] = self._fixed[slots]
        mine[:, START], mine[:, DRAFTS] = columns.starts, drafts
        mine[:, LIMIT] = self._limits[slots]
        mine[:, CONTEXT] = np.maximum(mine[:, LOW], columns.contexts)
        for number, (ratio, _, _) in enumerate(shape.entries):
            counts = reach // ratio
            table[count:, shape.first_base + number] = counts.sum()
            mine[:, shape.first_base + number] = np.cumsum(counts) - counts
        mine[:, shape.first_block :] = self._blocks[slots, : shape.num_blocks]
        return shape, table

    def refresh(self, sequence: Sequence, vocab_size: int) -> None:
        """Bring up to date what is kept of a sequence: its rules, if it is new in its slot, and blocks."""
        slot = sequence.slot
        if self._owners[slot] is not sequence:
            self._owners[slot], self._num_held[slot] = sequence, 0
            self._held[slot] = []
            params, row = sequence.request.params, self._fixed[slot]
            row[SLOT], row[SEED] = slot, np.uint64(sequence.seed).astype(np.int64)
            row[SAMPLE], row[TOP_K] = sequence.sample_index, min(params.top_k, vocab_size)
            row[LOW] = self._rule.low(sequence.prompt_length)
            row[HEAT : HEAT + 1].view(np.float32)[:] = params.temperature, params.top_p
            row[FLOOR : FLOOR + 1].view(np.float32)[:] = params.min_p, 0.0
        blocks = sequence.blocks
        if self._held[slot] is not blocks or self._num_held[slot] != len(blocks):
            self._blocks[slot, : len(blocks)] = blocks
            self._held[slot], self._num_held[slot] = blocks, len(blocks)
        self._limits[slot] = min(sequence.max_tokens - 1, len(blocks) * BLOCK_TOKENS)

    def _write_ids(self, target: Int64, shares: Items[Share], is_left: Items[bool], shape: TurnShape) -> None:
        before = shape.history - 1
        for row, share, left in zip(target, shares, is_left, strict=True):
            if left:
                continue
            sequence, count = share.sequence, share.num_drafts
            known = sequence.token_ids[max(0, sequence.num_tokens - shape.history) :]
            row[:before] = -1
            row[before + 1 - len(known) : before + 1] = known
            if count:
                row[before + 1 : before + 1 + count] = sequence.drafts.tokens[:count]

    def _of_one(
        self,
        sequence: Sequence,
        num_drafts: int,
        is_left: bool,
        drafts: Drafted,
        fit: Callable[[TurnShape], TurnShape],
    ) -> tuple[TurnShape, Int64]:
        """``filled`` for a single sequence, number by number: arrays of one element cost more."""
        slot, ends = sequence.slot, sequence.most_tokens
        reach = ends + num_drafts
        sums = [reach // ratio for ratio in self._layout.ratios]
        shape = fit(self._shape(1, drafts, sums, reach, int(self._num_held[slot])))
        table = np.zeros((shape.num_sequences, shape.num_columns), np.int64)
        if len(table) > 1:
            table[1:, SLOT] = -1
            table[1:, shape.first_base : shape.first_base + len(sums)] = sums
        mine = table[0]
        mine[:NUM_FIXED] = self._fixed[slot]
        mine[START], mine[DRAFTS] = FROM_DEVICE if is_left else ends - 1, num_drafts
        mine[LIMIT], mine[CONTEXT] = self._limits[slot], max(int(mine[LOW]), sequence.draft_from)
        mine[shape.first_block :] = self._blocks[slot, : shape.num_blocks]
        return shape, table

    def _refresh_new(self, sequence: Sequence, vocab_size: int) -> None:
        """``refresh`` if anything of the sequence is new."""
        slot, blocks = sequence.slot, sequence.blocks
        if (
            self._owners[slot] is not sequence
            or self._held[slot] is not blocks
            or self._num_held[slot] != len(blocks)
        ):
            self.refresh(sequence, vocab_size)

    def _shape(
        self, num_sequences: int, drafts: Drafted, sums: Items[int], longest: int, num_blocks: int
    ) -> TurnShape:
        """``sums`` are entries of all sequences by ratio, ``longest`` the tokens of the longest one."""
        has_drafts = drafts.num_rows > 0
        bucket = sequence_bucket(num_sequences)
        return TurnShape(
            num_sequences=bucket,
            num_rows=row_bucket(bucket + drafts.num_rows) if has_drafts else bucket,
            width=1 + self._layout.max_drafts if has_drafts else 1,
            num_blocks=min(_power(num_blocks, _FEWEST_BLOCKS), self._blocks.shape[1]),
            history=self._layout.history,
            entries=tuple(
                [
                    (
                        ratio,
                        _power(count, _FEWEST_ENTRIES * bucket),
                        _power(longest // ratio, _FEWEST_ENTRIES),
                    )
                    for ratio, count in zip(self._layout.ratios, sums, strict=True)
                ]
            ),
            drafting=drafts.mode,
            num_drafted=drafts.num_made,
            is_shared_out=drafts.is_shared_out,
        )


def _power(count: int, fewest: int) -> int:
    """The next power of two, at least ``fewest``."""
    return max(fewest, 1 << max(count - 1, 0).bit_length())
