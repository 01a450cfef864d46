"""Two-level selection in the interpreter against a stable sort, keys made up to be as unkind as keys can be.

Prints JSON: choices that are wrong, how many would be if ties went to the highest index, and those of profile
strict that are wrong. Argument ``all``: every kind of keys, in every shape.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import torch
from exact_interpreter import make_exact

make_exact()

from deepinfer.kernels.gpu import indexer, two_level  # noqa: E402
from deepinfer.kernels.gpu.index_scan import ABSENT  # noqa: E402
from deepinfer.kernels.gpu.two_level import Limits, index_select, index_select_within  # noqa: E402
from deepinfer.kernels.reference import indexer as reference  # noqa: E402

BLOCK, LENGTH = 8, 448
GENERATOR = torch.Generator().manual_seed(3)
FEW = {
    "equal": 257,
    "two values": 443,
    "few, at the ends of blocks": 448,
    "any": 100,
    "lowest and highest": 0,
}
"""Names of rows' keys, and what the rows see, of the small size."""
COUNTS = (0, 5, 15, 24, 200, 443)
Shape = tuple[int, int, Limits]
"""Entries and candidate blocks that are wanted, and how."""
SMALL: tuple[Shape, ...] = ((5, 9, Limits(entries=0, blocks=48)),)
SHAPES: tuple[Shape, ...] = (
    (5, 9, Limits(entries=0)),
    (16, 0, Limits(entries=0)),
    (4, 16, Limits(entries=0, blocks=32)),
    (5, 3, Limits(entries=0, blocks=16, scratch=2000)),
    (60, 9, Limits(entries=0)),
    (5, 9, Limits()),
)


@dataclass(frozen=True)
class Given:
    """Scores that are known: int16 [T, L]. What a scan does not write holds numbers above all others."""

    keys: torch.Tensor
    per_group: int = 16

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
        """See ``two_level.Scores``."""
        assert first % self.per_group == 0
        rows = torch.arange(len(self.keys))[part]
        entry = first + torch.arange(length)[None].expand(len(rows), -1)
        if blocks is not None:
            entry = (blocks[:, :, None].long() * block_size + torch.arange(block_size)).flatten(1)
            entry = torch.where(blocks.repeat_interleave(block_size, 1) < 0, -1, entry)
        seen = (entry >= 0) & (entry < counts[:, None])
        inside = entry.clamp(0, self.keys.shape[1] - 1)
        found = torch.where(seen, self.keys[rows[:, None], inside], ABSENT).to(torch.int16)
        largest = found.view(len(rows), -1, block_size).amax(2)
        if blocks is None:
            found[entry >= (counts[:, None] + 15) // 16 * 16] = 32767
            largest[entry[:, ::block_size] >= (counts[:, None] + 15) // 16 * 16] = 32767
        return found if keys else found[:, :0], largest if best else largest[:, :0]


def unkind(num_rows: int) -> dict[str, torch.Tensor]:
    """Keys [num_rows, L]."""

    def drawn(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (num_rows, LENGTH), generator=GENERATOR)

    place = torch.arange(LENGTH)[None].expand(num_rows, -1)
    return {
        "equal": drawn(7, 8),
        "two values": drawn(0, 2),
        "absent ones": torch.where(drawn(0, 3) == 0, 5, ABSENT),
        "few, at the ends of blocks": torch.where((place % BLOCK == 7) & (drawn(0, 2) == 0), 9, -drawn(1, 4)),
        "ascending": place - 200,
        "descending by blocks": 300 - place // BLOCK,
        "any": drawn(-32768, 32768),
        "lowest and highest": torch.where(drawn(0, 9) == 0, 32767, -32767),
    }


def wanted(
    keys: torch.Tensor, counts: torch.Tensor, top: int, num_blocks: int, last: bool = False
) -> two_level.Choice:
    """By a stable sort of all entries, and one of all blocks; ties to the highest index if ``last``."""

    def best(values: torch.Tensor, count: int) -> torch.Tensor:
        order = values.sort(descending=True, stable=True).indices
        if last:
            order = len(values) - 1 - values.flip(0).sort(descending=True, stable=True).indices
        order = order[values[order] > ABSENT][:count].sort().values.int()
        return torch.cat((order, torch.full((count - len(order),), -1, dtype=torch.int32)))

    entries, blocks = [], []
    for row, count in zip(keys, counts.tolist(), strict=True):
        seen = torch.where(torch.arange(LENGTH) < count, row, ABSENT)
        entries.append(best(seen, top))
        tops = seen.view(-1, BLOCK).amax(1).int()
        if count:
            tops[(count - 1) // BLOCK] = 40000
        blocks.append(best(tops, num_blocks))
    return torch.stack(entries), torch.stack(blocks)


def wrong(keys: torch.Tensor, counts: torch.Tensor, shape: Shape) -> dict[str, int]:
    """Choices that differ from those wanted, and from those of a sort that puts the highest index first."""
    top, num_blocks, limits = shape
    blank = torch.zeros(len(counts), 1, 1)
    given = Given(keys.to(torch.int16))
    found = index_select(blank, blank[:, 0], given, counts, LENGTH, top, num_blocks, BLOCK, limits)
    asked = wanted(keys, counts, top, num_blocks)
    differ = sum(int((a != b).sum()) for a, b in zip(found, asked, strict=True))
    if num_blocks and len(counts) > len(FEW):
        inside = torch.zeros(len(counts), LENGTH // BLOCK + 1, dtype=torch.bool)
        inside = inside.scatter(1, asked[1].long() % (LENGTH // BLOCK + 1), True)[:, :-1]
        within = torch.where(inside.repeat_interleave(BLOCK, 1), keys, ABSENT)
        chosen = index_select_within(blank, blank[:, 0], given, counts, asked[1], BLOCK, top)
        differ += int((chosen != wanted(within, counts, top, 0)[0]).sum())
    other = wanted(keys, counts, top, num_blocks, last=True)
    control = sum(int((a != b).sum()) for a, b in zip(found, other, strict=True))
    return {"wrong": differ, "control": control}


def strict_parts() -> int:
    """Choices of profile strict that are wrong where rows come in parts, scores coarse and exact."""
    q, keys = torch.randint(-1, 2, (1, 2, 16), generator=GENERATOR).float(), torch.zeros(150, 16)
    keys[:, :2] = torch.randint(-1, 2, (150, 2), generator=GENERATOR)
    given, asked = (q, torch.ones(1, 2), keys, torch.tensor([3]), torch.tensor([147])), (5, 4, BLOCK)
    found = indexer.index_select(*given, 147, *asked, True, held=64)
    sure = reference.index_select(*given, *asked, True)
    return sum(int((a != b).sum()) for a, b in zip(found, sure, strict=True))


def main() -> None:
    """The small size, or ``all``."""
    if "all" in sys.argv:
        keys = torch.cat(list(unkind(len(COUNTS)).values()))
        counts, shapes = torch.tensor(COUNTS).repeat(len(keys) // len(COUNTS)), SHAPES
    else:
        made = unkind(1)
        keys, counts, shapes = (
            torch.cat([made[name] for name in FEW]),
            torch.tensor(list(FEW.values())),
            SMALL,
        )
    found = [wrong(keys, counts, shape) for shape in shapes]
    sums = {name: sum(one[name] for one in found) for name in found[0]}
    print(json.dumps(sums | {"strict": strict_parts()}))


if __name__ == "__main__":
    main()
