"""What planning a turn takes and gives back; continues ``operands``.

A turn is a decode step that begins from what the one before it left on the device. The host says of each of
its sequences one row of numbers, the table; everything else follows from it here.

Legend: R sequences, T rows, q most rows of a sequence, W window, n ids of an Engram hash, B drafted tokens of
a sequence, G compress ratios.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SLOT, START, DRAFTS, LIMIT, LOW, CONTEXT, SEED, SAMPLE, HEAT, FLOOR, TOP_K = range(11)
"""Columns of a sequence: state slot (-1 for padding); position of its last known token; drafts to verify; one
past the last position it may compute; first position its decoder layers see; first position of its draft
contexts; seed; sample index; temperature and top_p as two float32; min_p and nothing; top_k."""
NUM_FIXED = 11
FROM_DEVICE = -1
"""As START: position, tokens and drafts are those that the turn before has left on the device."""


@dataclass(frozen=True)
class TurnState:
    """Where every sequence stands; the last row is nobody's, padding writes there.

    Attributes:
        start: int64 [slots + 1], position of the last known token.
        line: int64 [slots + 1, n + B], the ids before it, itself, and what was drafted behind it.
        sure: float32 [slots + 1, B], confidences of these drafts.
    """

    start: torch.Tensor
    line: torch.Tensor
    sure: torch.Tensor

    @classmethod
    def empty(cls, num_slots: int, history: int, max_drafts: int, device: torch.device) -> TurnState:
        """Nothing is known; a sequence's first turn reads the table of the host."""
        start = torch.zeros(num_slots + 1, dtype=torch.int64, device=device)
        line = torch.zeros(num_slots + 1, history + max_drafts, dtype=torch.int64, device=device)
        return cls(start, line, torch.zeros(num_slots + 1, max_drafts, device=device))


@dataclass(frozen=True, kw_only=True)
class TurnForm:
    """Sizes of a turn.

    Attributes:
        num_sequences, num_rows, width, history: R, T, q, n.
        num_blocks: cache blocks of a sequence in the table, each of ``block_tokens`` positions.
        entries: (ratio, room for the entries of all sequences, room for those of the longest), by ratio.
        first_base, first_id, first_block: columns of the table, see ``TurnShape``.
        window: W.
        ring, draft_ring: positions that the rings of a slot remember; 0 if drafts have none.
        half_depth: halves of pairs that a slot keeps.
        has_low: whether decoder layers see less than encoder layers.
        is_shared_out: whether T - R drafts go to the likeliest ones.
    """

    num_sequences: int
    num_rows: int
    width: int
    history: int
    num_blocks: int
    block_tokens: int
    entries: tuple[tuple[int, int, int], ...]
    first_base: int
    first_id: int
    first_block: int
    window: int
    ring: int
    draft_ring: int
    half_depth: int
    has_low: bool
    is_shared_out: bool


@dataclass(frozen=True, kw_only=True)
class TurnGroups:
    """Entries of one compress ratio, see ``engine.batch.Groups``.

    Attributes:
        records: int64 [room], cache records of the entries of all sequences, -1 for none.
        starts, writes: int64 [T], first token of the entry that a row completes, and its record, 0 and -1 if
            it completes none.
        pairs: int64 [T, 2] where an entry pools two tokens, rows and kept halves of them; else [T, 0].
        waiting, halves: int64 [T], where the half of a row is kept, -1 for nowhere, and the rows; else [0].
    """

    records: torch.Tensor
    starts: torch.Tensor
    writes: torch.Tensor
    pairs: torch.Tensor
    waiting: torch.Tensor
    halves: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class TurnPlan:
    """Who computes what in a turn; integers are int64, -1 means nothing.

    Attributes:
        place, start, count, first: [R], row of the state, position of the first row, rows (0 for padding and
            for a sequence that has nothing left to compute), and the first of them.
        line: [R, n - 1 + q], ids before the known one, that, and drafts.
        owner: [T], sequence of each row; any for padding.
        positions, following: [T], 0 for padding, and one more.
        token_ids, recent: [T] and [T, n], its id, and it with those before it (-1 before the start).
        seeds, samples, top_k: [T], how its token is drawn.
        temperature, top_p, min_p: float32 [T].
        windows: [T, W], places in history and step that a row of the encoder sees.
        low_windows: the same for decoder layers, None if they see no less.
        history: [R * (W - 1)], ring records of the positions before each sequence's rows.
        ring, draft_ring: [T], where a row is kept; the latter [0] without drafts.
        base, visible: [T] for each ratio, first entry of a row's sequence and how many it sees.
        groups: by ratio.
    """

    place: torch.Tensor
    start: torch.Tensor
    count: torch.Tensor
    first: torch.Tensor
    line: torch.Tensor
    owner: torch.Tensor
    positions: torch.Tensor
    following: torch.Tensor
    token_ids: torch.Tensor
    recent: torch.Tensor
    seeds: torch.Tensor
    samples: torch.Tensor
    top_k: torch.Tensor
    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    windows: torch.Tensor
    low_windows: torch.Tensor | None
    history: torch.Tensor
    ring: torch.Tensor
    draft_ring: torch.Tensor
    base: tuple[torch.Tensor, ...]
    visible: tuple[torch.Tensor, ...]
    groups: tuple[TurnGroups, ...]


@dataclass(frozen=True, kw_only=True)
class TurnEnd:
    """What verification accepted; int64 [R].

    Attributes:
        accepted: leading drafts that are what was drawn in their place.
        golden: the token behind them.
        start: its position.
        anchor, slot, low: where the next drafts begin, see ``engine.model.draft.Anchors``; 0 for padding.
    """

    accepted: torch.Tensor
    golden: torch.Tensor
    start: torch.Tensor
    anchor: torch.Tensor
    slot: torch.Tensor
    low: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class TurnFound:
    """What is handed to the host.

    Attributes:
        ids: int64 [T], tokens drawn.
        raw, processed: float32 [T], their log-probabilities.
        drafts: int64 [R, B], what may come next; B is 0 if nothing was drafted.
        confidences: float32 [R, B].
    """

    ids: torch.Tensor
    raw: torch.Tensor
    processed: torch.Tensor
    drafts: torch.Tensor
    confidences: torch.Tensor
