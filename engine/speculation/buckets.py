"""Numbers of sequences and rows that recorded steps come in; a step is filled up to the next one.

Few of them, so that each is soon recorded: rows that fill a step up cost next to nothing on a device that a
small step leaves idle, and a recording costs as much as many steps.
"""

from __future__ import annotations

from functools import lru_cache

MAX_ROWS = 384
"""Rows of a recorded decode step; a longer one keeps a device busy without."""


def sequence_bucket(count: int) -> int:
    """1, 2, 4, 8, then multiples of 16."""
    return 1 << (count - 1).bit_length() if count <= 8 else -(-count // 16) * 16


def row_bucket(count: int) -> int:
    """2, 4, 6, 8, 12, 16, 24, 32, 48, ...: powers of two, and halfway between them."""
    if count <= 8:
        return max(2, -(-count // 2) * 2)
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


@lru_cache(4096)
def draft_totals(num_sequences: int, most: int, most_each: int) -> tuple[int, ...]:
    """Drafts of all sequences together, at most ``most``; ascending, 0 first.

    They stand for 1, 2 or all ``most_each`` of a sequence, filled up to the bucket of their rows: each is a
    shape of its own, and few are worth to be recorded. For a single sequence 3 are worth a try too.
    """
    held, bound = sequence_bucket(num_sequences), num_sequences * most_each
    each = sorted({0, 1, min(2, most_each), most_each})
    if num_sequences == 1:
        return tuple(sorted({total for total in (*each, min(3, most_each)) if total <= most}))
    totals = {0, *(min(row_bucket(held * (1 + k)) - held, bound) for k in each[1:])}
    return tuple(sorted({min(total, most) for total in totals}))
