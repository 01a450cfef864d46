"""Cuts the rows of an op into tiles, so that what it gathers for them stays small and in the cache."""

from __future__ import annotations

from collections.abc import Iterator

TILE_FLOATS = 1 << 19
"""Values gathered at once, 2 MiB: larger blocks go back to the system and come back as page faults."""


def row_tiles(num_rows: int, floats_per_row: int) -> Iterator[slice]:
    """Consecutive slices of ``range(num_rows)`` whose rows together gather about ``TILE_FLOATS`` values."""
    size = max(1, TILE_FLOATS // max(1, floats_per_row))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))
