"""Steps of one shape for many: a step filled up with rows that see nothing and leave nothing.

A recorded step can only be played again with the same shapes. A padding row has position 0, an empty window
and no entry to look at, and names no record, so nothing of it reaches a cache; a real row reads the same
values in the same order as without it. Index scores get more room than there are entries, and room is never
selected.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from deepinfer.engine.batch import Bucket, Groups, Rows, Step
from deepinfer.engine.step_plan import BLOCK_TOKENS

_FEWEST_ENTRIES = 256
SMALL_ROWS = 64
"""Rows up to which each may be a sequence of its own; longer steps hold at most as many sequences as this."""


def bucket_of(step: Step, *, max_rows: int, max_chunk: int | None) -> Bucket | None:
    """The bucket of a step, None for a step that is not worth it: long, with long chunks, or truncated.

    Args:
        step: on the host.
        max_rows: rows of a recorded step.
        max_chunk: rows of one sequence in it; None for any number.
    """
    num_rows = step.token_ids.shape[0]
    if num_rows > max_rows or step.is_truncated:
        return None
    if max_chunk is not None and any(c.end - c.start > max_chunk for c in step.chunks):
        return None
    if num_rows > SMALL_ROWS and _most_of_sequences(step) > SMALL_ROWS:
        return None
    size = min(_rows(num_rows), max_rows)
    entries = [
        (ratio, _room(group.records.shape[0]), _room(group.longest)) for ratio, group in step.groups.items()
    ]
    return Bucket(size, _room_for_history(step, size), tuple(entries), step.own_decoder is None)


def _most_of_sequences(step: Step) -> int:
    """The largest of the numbers of things that a sequence has one of: chunks, and halves that wait."""
    return max(len(step.chunks), *(group.halves.shape[0] for group in step.groups.values()))


def _room_for_history(step: Step, size: int) -> int:
    """A window of every row in a small step; in others what the few sequences that go on need."""
    if size <= SMALL_ROWS:
        return size * (step.encoder.window.shape[1] - 1)
    return _power_of_two(max(rows.history_records.shape[0] for rows in (step.encoder, step.decoder)))


def _rows(num_rows: int) -> int:
    """1, 2, 4, then multiples of 8, then of a sixteenth of the next power of two."""
    if num_rows <= 4:
        return num_rows if num_rows <= 2 else 4
    unit = max(8, _power_of_two(num_rows) // 16)
    return -(-num_rows // unit) * unit


def _power_of_two(count: int) -> int:
    """The next one; 0 for none."""
    return 1 << (count - 1).bit_length() if count else 0


def _room(count: int) -> int:
    """The next power of two, never few."""
    return max(_FEWEST_ENTRIES, _power_of_two(count))


def padded(step: Step, bucket: Bucket) -> Step:
    """``step``, on the host, in the shapes of its bucket; real rows come first."""
    size = bucket.num_rows
    rooms = {ratio: (room, longest) for ratio, room, longest in bucket.entries}
    return replace(
        step,
        token_ids=_filled(step.token_ids, size, 0),
        recent_ids=_filled(step.recent_ids, size, -1),
        encoder=_rows_of(step.encoder, size, bucket.history),
        kept=torch.arange(size),
        own_decoder=None if step.own_decoder is None else _rows_of(step.own_decoder, size, bucket.history),
        groups={ratio: _groups_of(g, step, ratio, size, *rooms[ratio]) for ratio, g in step.groups.items()},
        tables=_tables_of(step.tables, size, rooms),
        bucket=bucket,
    )


def filled_rows(rows: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """Zero rows behind ``rows`` [T, ...]."""
    return _filled(rows, bucket.num_rows, 0)


def _rows_of(rows: Rows, size: int, room: int) -> Rows:
    num_history = rows.history_records.shape[0]
    return replace(
        rows,
        owner=_filled(rows.owner, size, 0),
        positions=_filled(rows.positions, size, 0),
        window=_filled(_shifted(rows.window, num_history, room), size, -1),
        history_records=_filled(rows.history_records, room, -1),
        ring_records=_filled(rows.ring_records, size, -1),
        draft_ring_records=_filled(rows.draft_ring_records, size, -1)
        if rows.draft_ring_records.shape[0]
        else rows.draft_ring_records,
        base={ratio: _filled(base, size, 0) for ratio, base in rows.base.items()},
        visible={ratio: _filled(visible, size, 0) for ratio, visible in rows.visible.items()},
        boundary_windows=_shifted(rows.boundary_windows, num_history, room),
    )


def _shifted(places: torch.Tensor, size: int, room: int) -> torch.Tensor:
    """Places in a buffer whose first part has ``room`` rows instead of ``size``."""
    return torch.where(places >= size, places + (room - size), places) if room > size else places


def _groups_of(groups: Groups, step: Step, ratio: int, size: int, room: int, longest: int) -> Groups:
    num_rows = step.token_ids.shape[0]
    # every row completes a group of one; a sequence completes at most one more than its rows have whole ones
    completed = size if ratio == 1 or size <= SMALL_ROWS else size // ratio + SMALL_ROWS
    return replace(
        groups,
        longest=longest,
        records=_filled(groups.records, room, -1),
        starts=_filled(groups.starts, completed, 0),
        writes=_filled(groups.writes, completed, -1),
        # kept halves lie behind the rows of the step
        pairs=_filled(_shifted(groups.pairs, num_rows, size), completed, 0),
        # the last place, which is nobody's
        waiting=_filled(groups.waiting, min(size, SMALL_ROWS), -1),
        halves=_filled(groups.halves, min(size, SMALL_ROWS), 0),
    )


def _tables_of(tables: torch.Tensor, size: int, rooms: dict[int, tuple[int, int]]) -> torch.Tensor:
    """Block tables of as many sequences as a bucket may hold, as wide as the longest run of entries."""
    widest = max((longest * ratio // BLOCK_TOKENS for ratio, (_, longest) in rooms.items()), default=0)
    wide = tables.new_zeros(min(size, SMALL_ROWS), widest)
    kept = tables[:, :widest]  # what lies behind holds no complete entry
    wide[: kept.shape[0], : kept.shape[1]] = kept
    return wide


def _filled(values: torch.Tensor, size: int, value: int) -> torch.Tensor:
    """``values`` [n, ...] with rows of ``value`` behind them, [size, ...]."""
    missing = size - values.shape[0]
    if missing == 0:
        return values
    return torch.cat([values, values.new_full((missing, *values.shape[1:]), value)])
