"""Two-level selection of index entries, profile fast: the scores of a long row are never in memory.

The first level keeps the largest key of each block of entries, a part of the row at a time, and of all parts
together the best blocks so far. The second level scores the entries of the ``top`` best blocks again and
chooses among these. ``select_blocks.py`` shows that this is exact, ties to the lowest index included; an
entry has the same key twice, since its bits depend on its row and itself alone. Rows so short that the
second level would hold them anyway, or nearly, are scored once.

So a row needs memory for ``Limits.blocks`` largest keys and the keys of ``top`` blocks (or those of
``Limits.entries`` entries), whatever its context; rows are taken as many at a time as ``Limits.scratch``
holds.

Legend: T rows, Hi and Ci index heads and width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from deepinfer.kernels.gpu.launching import ceil_div
from deepinfer.kernels.gpu.select16 import select_entries, select_within
from deepinfer.kernels.gpu.select_blocks import HELD, Carried, best_blocks

_WHOLE = 64
"""Rows of keys are multiples of it: kernels then store eight at once."""
Choice = tuple[torch.Tensor, torch.Tensor]
"""Entries int32 [T, top] and candidate blocks int32 [T, Nb]: ascending, then -1."""


class Scores(Protocol):
    """Index keys of the sequences of T rows, and how they are scored."""

    @property
    def per_group(self) -> int:
        """Entries of a group of records; a scan begins at a multiple of it."""

    def scan(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        part: slice,
        first: int,
        counts: torch.Tensor,
        length: int,
        block_size: int,
        blocks: torch.Tensor | None = None,
        keys: bool = True,
        best: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ordered keys of the entries from ``first`` on, of rows ``part``; see ``index_scan.scan``.

        ``counts`` and ``blocks`` are those of these rows; counts are of whole rows, blocks follow from
        ``first``.
        """


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is held at a time; moves no bit.

    Attributes:
        entries: of a row that is scored once.
        blocks: of a row at the first level, at most ``HELD``.
        scratch: bytes of all rows.
    """

    entries: int = 4096
    blocks: int = HELD
    scratch: int = 1 << 26


@dataclass(frozen=True, kw_only=True)
class _Search:
    """What is looked for in rows of at most ``longest`` entries, and where."""

    keys: Scores
    longest: int
    top: int
    num_blocks: int
    block_size: int
    limits: Limits

    @property
    def is_short(self) -> bool:
        """Whether rows are scored once."""
        return self.longest <= max(self.limits.entries, self.top * self.block_size)

    @property
    def carried(self) -> int:
        """Blocks from part to part: those that may be wanted in the end, and the newest one."""
        return max(self.num_blocks, self.top + 1)

    @property
    def part_blocks(self) -> int:
        """Blocks of a part of a row: whole groups of records, and room for what is carried.

        Raises:
            ValueError: the limits leave no room for it.
        """
        if ceil_div(self.longest, self.block_size) <= self.limits.blocks:
            return ceil_div(self.longest, self.block_size)
        unit = math.lcm(self.keys.per_group, _WHOLE, self.block_size) // self.block_size
        count = (self.limits.blocks - self.carried) // unit * unit
        if count < 1:
            raise ValueError(f"two-level selection: {self.carried} blocks wanted, {self.limits.blocks} held")
        return count

    @property
    def row_bytes(self) -> int:
        """Scratch of a row."""
        if self.is_short:
            return 2 * (self.longest + ceil_div(self.longest, self.block_size))
        return 2 * self.part_blocks + 12 * self.carried + 2 * self.top * self.block_size

    def at_once(self, q: torch.Tensor, w: torch.Tensor, part: slice, counts: torch.Tensor) -> Choice:
        """The choice of rows ``part`` from the keys of all their entries."""
        size = self.block_size
        scored, best = self.keys.scan(q, w, part, 0, counts, self.longest, size, best=True)
        found, _ = best_blocks(best, counts, size, self.num_blocks, 0)
        return select_entries(scored, best, counts, self.top, size), found.blocks

    def in_two_levels(self, q: torch.Tensor, w: torch.Tensor, part: slice, counts: torch.Tensor) -> Choice:
        """The same choice from the keys of the best blocks."""
        size, step, total = self.block_size, self.part_blocks, ceil_div(self.longest, self.block_size)
        carried: Carried | None = None
        for first in range(0, total, step):
            here, more = min(step, total - first), first + step < total
            _, best = self.keys.scan(
                q, w, part, first * size, counts, here * size, size, keys=False, best=True
            )
            wanted = (self.carried, 0) if more else (self.num_blocks, self.top)
            carried, own = best_blocks(best, counts, size, *wanted, first, carried, more)
        assert carried is not None
        scored, _ = self.keys.scan(q, w, part, 0, counts, self.top * size, size, own)
        return select_within(scored, counts, self.top, own, size), carried.blocks


_LIMITS = Limits()


def index_select(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: Scores,
    counts: torch.Tensor,
    longest: int,
    top: int,
    num_blocks: int,
    block_size: int,
    limits: Limits = _LIMITS,
) -> Choice:
    """See ``Ops.index_select``; ``limits`` move no bit."""
    num_rows, longest = len(q), ceil_div(longest, _WHOLE) * _WHOLE
    if num_rows == 0 or longest == 0:
        entries, blocks = (
            torch.full((num_rows, n), -1, dtype=torch.int32, device=q.device) for n in (top, num_blocks)
        )
        return entries, blocks
    search = _Search(
        keys=keys, longest=longest, top=top, num_blocks=num_blocks, block_size=block_size, limits=limits
    )
    choose: Callable[..., Choice] = search.at_once if search.is_short else search.in_two_levels
    queries, weights = q.contiguous(), w.contiguous()
    found = [
        choose(queries, weights, part, counts[part].contiguous())
        for part in _parts(num_rows, search.row_bytes, limits)
    ]
    if len(found) == 1:
        return found[0]
    return torch.cat([entries for entries, _ in found]), torch.cat([blocks for _, blocks in found])


def index_select_within(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: Scores,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
    limits: Limits = _LIMITS,
) -> torch.Tensor:
    """See ``Ops.index_select_within``; a row has the keys of its candidates, whatever its context."""
    allowed, own = blocks.to(torch.int32).contiguous(), counts.contiguous()
    queries, weights, found = q.contiguous(), w.contiguous(), []
    length = allowed.shape[1] * block_size
    for part in _parts(len(q), 2 * (length + allowed.shape[1]), limits):
        args = (part, 0, own[part], length, block_size, allowed[part])
        scored, best = keys.scan(queries, weights, *args, best=True)
        found.append(select_within(scored, own[part], top, allowed[part], block_size, best=best))
    return found[0] if len(found) == 1 else torch.cat(found)


def _parts(num_rows: int, row_bytes: int, limits: Limits) -> list[slice]:
    """As many rows at a time as the scratch takes; one empty part of no rows."""
    step = max(1, limits.scratch // max(row_bytes, 1))
    return [slice(low, min(low + step, num_rows)) for low in range(0, max(num_rows, 1), step)]
