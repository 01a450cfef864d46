"""Compile attention and index scores for a Hopper chip, over decoded pools and over packed records.

Prints by kernel and kind of rows the layouts of all products and reductions, which fix the order that the
matrix unit and the lanes add in, as JSON. Argument ``control`` leaves out what keeps these layouts from
following the width of a load.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from compile_only import compile_only

from deepinfer.kernels.gpu.launching import Block, device

ROWS, HEADS, GROUPS = 16, 4, 8
FOUND: dict[str, list[str]] = {}
NAME = re.compile(r"#\w+")


@device
def _seen_through(values: Block) -> Block:
    return values


def layouts(text: str) -> list[str]:
    """Types of products and reductions of a program, with layouts written out, in order."""
    known = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    wanted = [line for line in text.splitlines() if "tt.dot" in line or "_dot " in line or "}) : (" in line]
    found = []
    for line in wanted:
        types = re.findall(r"tensor<[^!]*?>(?= \*| ->|\)|,| loc|$)", line.split(" loc(")[0])
        found.append(" ".join(NAME.sub(lambda name: known.get(name[0], name[0]), one) for one in types))
    return found


def records(kind: str, width: int, codes: int, scales: int, per: int) -> Any:
    """Records that nobody has written."""
    from deepinfer.kernels.gpu.records import bind_records

    whole = torch.empty(GROUPS, per, codes + scales, dtype=torch.uint8)
    return bind_records(kind, width, whole[..., :codes], whole[..., codes:])


def attention(width: int) -> None:
    """Both kinds of rows, windows and entries; queries as they are, then rotated within; then ahead."""
    from deepinfer.kernels.gpu import pool_attention
    from deepinfer.kernels.operands import PagedRecords, Rotary

    q, pool = torch.empty(ROWS, HEADS, width), torch.empty(99, width)
    slots, sink = torch.zeros(ROWS, 64, dtype=torch.int32), torch.empty(HEADS)
    window = records("mxfp8", width, width, width // 32, 1)
    pages = PagedRecords(records("fp4", width, width // 2, width // 16, 64), slots, 64)
    table = torch.empty(64, width // 8)
    for pool_attention._FEW in (0, ROWS):
        for rotary in (None, Rotary(table, table, torch.zeros(ROWS).long())):
            pool_attention.sparse_attention(q, pool, slots, pool, slots, sink, rotary)
            pool_attention.attend_records(q, window, slots, pages, slots, sink, rotary=rotary)


def index(width: int) -> None:
    """Both kinds of keys."""
    from deepinfer.kernels.gpu.pool_index import Keys
    from deepinfer.kernels.gpu.row_sources import floats, packed
    from deepinfer.kernels.gpu.two_level import index_select

    q, w, counts = torch.empty(ROWS, HEADS, width), torch.empty(ROWS, HEADS), torch.zeros(ROWS).long()
    pages = packed(records("mxfp4", width, width // 2, width // 32, 64))
    table = torch.zeros(ROWS, GROUPS, dtype=torch.int32)
    for keys in (Keys(floats(torch.empty(99, width)), counts), Keys(pages, table)):
        index_select(q, w, keys, counts, 256, 12, 0, 8)


def main() -> None:
    """The widths of the bundled checkpoint."""
    compile_only(layouts=lambda name, text: FOUND.setdefault(name, []).append("\n".join(layouts(text))))
    from deepinfer.kernels.gpu import pool_attention, row_sources

    if sys.argv[1:] == ["control"]:
        row_sources.from_nowhere = pool_attention.from_nowhere = _seen_through
    attention(128)
    index(64)
    print(json.dumps({name: found for name, found in FOUND.items() if name.startswith("pool")}))


if __name__ == "__main__":
    main()
