"""Steps of one shape for many: a small step filled up with rows that see nothing and leave nothing.

A recorded step can only be played again with the same shapes. A padding row has position 0, an empty window
and no entry to look at, and names no record, so nothing of it reaches a cache; a real row reads the same
values in the same order as without it. Index scores get more room than there are entries, and room is never
selected.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from deepinfer.engine.batch import Bucket, Groups, Rows, Step

_FEWEST_ENTRIES = 256


def bucket_of(step: Step, *, max_rows: int, max_chunk: int) -> Bucket | None:
    """The bucket of a step, None for a step that is not worth it: long, with long chunks, or truncated.

    Args:
        step: on the host.
        max_rows: rows of a recorded step.
        max_chunk: rows of one sequence in it.
    """
    num_rows = step.token_ids.shape[0]
    if num_rows > max_rows or step.is_truncated or any(c.end - c.start > max_chunk for c in step.chunks):
        return None
    entries = [
        (ratio, _room(group.records.shape[0]), _room(group.longest)) for ratio, group in step.groups.items()
    ]
    return Bucket(min(_rows(num_rows), max_rows), tuple(entries), step.own_decoder is None)


def _rows(num_rows: int) -> int:
    """1, 2, 4, then multiples of 8."""
    return num_rows if num_rows <= 2 else 4 if num_rows <= 4 else -(-num_rows // 8) * 8


def _room(count: int) -> int:
    """The next power of two, never few."""
    return max(_FEWEST_ENTRIES, 1 << max(count - 1, 0).bit_length())


def padded(step: Step, bucket: Bucket) -> Step:
    """``step``, on the host, in the shapes of its bucket; real rows come first."""
    size = bucket.num_rows
    rooms = {ratio: (room, longest) for ratio, room, longest in bucket.entries}
    return replace(
        step,
        token_ids=_filled(step.token_ids, size, 0),
        recent_ids=_filled(step.recent_ids, size, -1),
        encoder=_rows_of(step.encoder, size),
        kept=torch.arange(size),
        own_decoder=None if step.own_decoder is None else _rows_of(step.own_decoder, size),
        groups={ratio: _groups_of(g, step, size, *rooms[ratio]) for ratio, g in step.groups.items()},
        bucket=bucket,
    )


def filled_rows(rows: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """Zero rows behind ``rows`` [T, ...]."""
    return _filled(rows, bucket.num_rows, 0)


def _rows_of(rows: Rows, size: int) -> Rows:
    window = rows.window.shape[1]
    num_history, room = rows.history_records.shape[0], size * (window - 1)
    return replace(
        rows,
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


def _groups_of(groups: Groups, step: Step, size: int, room: int, longest: int) -> Groups:
    num_rows = step.token_ids.shape[0]
    return replace(
        groups,
        longest=longest,
        records=_filled(groups.records, room, -1),
        starts=_filled(groups.starts, size, 0),
        writes=_filled(groups.writes, size, -1),
        # kept halves lie behind the rows of the step
        pairs=_filled(_shifted(groups.pairs, num_rows, size), size, 0),
        waiting=_filled(groups.waiting, size, -1),  # the last place, which is nobody's
        halves=_filled(groups.halves, size, 0),
    )


def _filled(values: torch.Tensor, size: int, value: int) -> torch.Tensor:
    """``values`` [n, ...] with rows of ``value`` behind them, [size, ...]."""
    missing = size - values.shape[0]
    if missing == 0:
        return values
    return torch.cat([values, values.new_full((missing, *values.shape[1:]), value)])
