"""Ops on packed records in the exact interpreter, profile fast: the bytes of the same ops on decoded records.

Prints what differs as JSON: counts of values, relative errors where a shape has a kernel of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from exact_interpreter import make_exact

make_exact()

import fast_references as reference  # noqa: E402

from deepinfer.kernels import record_chains  # noqa: E402
from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.operands import BoundRecords, PagedRecords  # noqa: E402

OPS = select_ops("triton", bf16=True)
GENERATOR = torch.Generator().manual_seed(23)
GROUPS = {"mxfp8": (1, 32), "mxfp4": (2, 32), "fp4": (2, 16)}
"""Values of a byte, and of a scale."""


def normal(*shape: int) -> torch.Tensor:
    """Normal numbers that bfloat16 holds, of sizes from 2**-4 to 2."""
    powers = torch.randint(-4, 2, (*shape[:-1], 1), generator=GENERATOR)
    return torch.randn(shape, generator=GENERATOR).mul(2.0**powers).to(torch.bfloat16).float()


def records(kind: str, width: int, groups: int, per: int, is_sectioned: bool) -> BoundRecords:
    """Records of random values, codes and scales side by side or one behind the other in a group."""
    values, group = GROUPS[kind]
    size, scales = width // values, width // group
    buffer = torch.zeros(groups, per * (size + scales), dtype=torch.uint8)
    if is_sectioned:
        parts = buffer[:, : per * size].view(groups, per, -1), buffer[:, per * size :].view(groups, per, -1)
    else:
        both = buffer.view(groups, per, -1)
        parts = both[..., :size], both[..., size:]
    where = OPS.bind_records(kind, width, *parts)
    OPS.store_records(where, normal(groups * per, width), torch.arange(groups * per))
    return where


def paged(where: BoundRecords, rows: int, groups: int, per: int) -> PagedRecords:
    """Every row has all groups, in an order of its own."""
    table = torch.stack([torch.randperm(groups, generator=GENERATOR) for _ in range(rows)]).int()
    return PagedRecords(records=where, table=table, per_group=per)


def unequal(one: torch.Tensor, other: torch.Tensor) -> int:
    """Values whose bytes differ."""
    return int((one.contiguous().view(torch.int32) != other.contiguous().view(torch.int32)).sum())


def attention(kind: str, width: int, heads: int, per: int) -> dict[str, int]:
    """Windows that begin and end early, a row that sees nothing, entries of all groups."""
    rows, near, far, groups = 3, 40, 20, 4
    q, sink = torch.randn(rows, heads, width, generator=GENERATOR).to(torch.bfloat16).float(), normal(heads)
    window = records("mxfp8", width, 60, 1, False)
    slots = torch.stack([torch.randperm(60, generator=GENERATOR)[:near] for _ in range(rows)]).int()
    slots[0, :9], slots[2] = -1, -1
    pages = paged(records(kind, width, groups, per, False), rows, groups, per)
    entries = torch.randint(0, groups * per, (rows, far), generator=GENERATOR).int()
    entries[1, 12:], entries[2] = -1, -1
    given = (q, window, slots, pages, entries, sink)
    found, wanted = OPS.attend_records(*given), record_chains.attend_records(OPS, *given)
    part = replace(pages, table=pages.table[1:2])
    alone = OPS.attend_records(q[1:2], window, slots[1:2], part, entries[1:2], sink)
    without = (q, window, slots, PagedRecords(window, slots[:, :0], 1), slots[:, :0], sink)
    shifted = replace(pages, table=pages.table.roll(1, 1))
    moved = OPS.attend_records(q, window, slots, shifted, entries, sink)
    return {
        "decoded": unequal(found, wanted),
        "alone": unequal(alone, found[1:2]),
        "blind": int(found[2].count_nonzero()),
        "window only": unequal(OPS.attend_records(*without), record_chains.attend_records(OPS, *without)),
        "control": unequal(moved, found),
    }


def index(width: int, heads: int, per: int, is_sectioned: bool) -> dict[str, int]:
    """All entries, then those of candidate blocks; one row sees none."""
    rows, groups, block = 4, 3, 8
    q = OPS.mxfp4_(torch.randn(rows, heads, width, generator=GENERATOR))
    w = torch.randn(rows, heads, generator=GENERATOR).to(torch.bfloat16).float()
    pages = paged(records("mxfp4", width, groups, per, is_sectioned), rows, groups, per)
    counts = torch.tensor([groups * per, 0, per + 3, 2 * per])
    longest = 1 << (groups * per - 1).bit_length()
    whole = (counts, longest, 12, 5, block)
    entries, blocks = OPS.select_records(q, w, pages, *whole)
    wanted = record_chains.select_records(OPS, q, w, pages, *whole)
    within = OPS.select_records_within(q, w, pages, counts, blocks, block, 9)
    fewer = record_chains.select_records_within(OPS, q, w, pages, counts, blocks, block, 9)
    part, own = replace(pages, table=pages.table[2:3]), (counts[2:3], longest, 12, 5, block)
    alone = OPS.select_records(q[2:3], w[2:3], part, *own)
    moved = OPS.select_records(q, w, replace(pages, table=pages.table.roll(1, 1)), *whole)
    return {
        "entries": int((entries != wanted[0]).sum()),
        "blocks": int((blocks != wanted[1]).sum()),
        "within": int((within != fewer).sum()),
        "alone": int((alone[0] != entries[2:3]).sum() + (alone[1] != blocks[2:3]).sum()),
        "control": int((moved[0] != entries).sum()),
    }


def released() -> dict[str, float]:
    """The released widths, whose attention adds in another order than that over decoded rows."""
    rows, heads, width, per = 2, 3, 512, 64
    q, sink = torch.randn(rows, heads, width, generator=GENERATOR).to(torch.bfloat16).float(), normal(heads)
    window = records("mxfp8", width, 40, 1, False)
    slots = torch.randint(0, 40, (rows, 20), generator=GENERATOR).int()
    pages = paged(records("fp4", width, 2, per, False), rows, 2, per)
    entries = torch.randint(-1, 2 * per, (rows, 24), generator=GENERATOR).int()
    given = (q, window, slots, pages, entries, sink)
    found, wanted = OPS.attend_records(*given), record_chains.attend_records(OPS, *given)
    moved = OPS.attend_records(q, window, slots, replace(pages, table=pages.table.flip(1)), entries, sink)
    return {"error": reference.relative(found, wanted), "control": reference.relative(moved, wanted)}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "attention fp4 96": lambda: attention("fp4", 96, 3, 16),
    "index 96": lambda: index(96, 3, 16, True),
    "attention mxfp8 32": lambda: attention("mxfp8", 32, 20, 24),
    "attention fp4 128": lambda: attention("fp4", 128, 4, 64),
    "index 64": lambda: index(64, 4, 64, True),
    "index 32": lambda: index(32, 20, 24, False),
    "index 128": lambda: index(128, 32, 64, True),
    "released": released,
}
"""Odd widths and groups, those of the bundled checkpoint, and the released ones."""


def main() -> None:
    """The cases that are asked for, or the two that take seconds."""
    print(json.dumps({name: CASES[name]() for name in sys.argv[1:] or list(CASES)[:2]}))


if __name__ == "__main__":
    main()
