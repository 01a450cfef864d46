"""Attention sublayers of any width, with decoded or packed rows to attend to, for sets of profile fast."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from deepinfer.kernels.attention_operands import Seen, SeenRecords, SeenRows
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords, LowRank, PackedWeight, PagedRecords, Rotary

MODEL, LATENT, OUTPUTS = 48, 24, 20
"""Widths around attention: its input and output, the latent of queries, the outputs of a group of heads."""
GROUPS = {"mxfp8": (1, 32), "fp4": (2, 16)}
"""Values of a byte, and of a scale."""


@dataclass(frozen=True)
class Sublayer:
    """An ``AttentionLayer``."""

    query: LowRank
    num_heads: int
    sink: torch.Tensor
    wo_a: PackedWeight
    wo_b: PackedWeight


class Cases:
    """Draws what a kernel set attends with, on its device."""

    def __init__(self, ops: Ops, seed: int) -> None:
        """Everything follows from ``seed``."""
        self.ops, self._draw = ops, torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        """Normal numbers that bfloat16 holds."""
        values = torch.randn(shape, generator=self._draw).to(torch.bfloat16).float()
        return values.to(self.ops.device)

    def whole(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Integers int32 from ``low`` and below ``high``."""
        return torch.randint(low, high, shape, generator=self._draw).int().to(self.ops.device)

    def rotary(self, num_rows: int, num_pairs: int) -> Rotary:
        """Angles of 40 positions, and some of them."""
        angles = self.normal(2, 40, num_pairs)
        return Rotary(angles[0].cos(), angles[1].sin(), self.whole(0, 39, num_rows).long())

    def sublayer(self, num_heads: int, width: int) -> Sublayer:
        """All heads are one group of the first output matrix."""
        pack = self.ops.pack_linear
        return Sublayer(
            query=LowRank(
                down=pack(self.normal(LATENT, MODEL)),
                gain=self.normal(LATENT),
                up=pack(self.normal(num_heads * width, LATENT)),
                eps=1e-6,
            ),
            num_heads=num_heads,
            sink=self.normal(num_heads),
            wo_a=pack(self.normal(1, OUTPUTS, num_heads * width)),
            wo_b=pack(self.normal(MODEL, OUTPUTS)),
        )

    def rows(self, num_rows: int, width: int, near: int, far: int) -> SeenRows:
        """Decoded rows, some slots empty; the last row but the first sees nothing."""
        slots, chosen = self.whole(-1, 60, num_rows, near), self.whole(-1, 60, num_rows, far)
        slots[1:][-1:], chosen[1:][-1:] = -1, -1
        return SeenRows(self.normal(60, width), slots.long(), self.normal(60, width), chosen.long())

    def records(self, num_rows: int, width: int, near: int, far: int) -> SeenRecords:
        """Packed ones: windows as MXFP8, entries as FP4 in pages of 16."""
        slots, chosen = self.whole(-1, 60, num_rows, near), self.whole(-1, 64, num_rows, far)
        slots[1:][-1:], chosen[1:][-1:] = -1, -1
        pages = PagedRecords(self._stored("fp4", width, 4, 16), self.whole(0, 4, num_rows, 4), 16)
        return SeenRecords(self._stored("mxfp8", width, 60, 1), slots, pages, chosen)

    def seen(self, packed: bool, num_rows: int, width: int, near: int = 20, far: int = 12) -> Seen:
        """Either."""
        return (self.records if packed else self.rows)(num_rows, width, near, far)

    def attend(self, packed: bool, num_rows: int, num_heads: int, width: int) -> torch.Tensor:
        """A sublayer from input to output [T, ``MODEL``], a quarter of its channels rotated."""
        layer, rotary = self.sublayer(num_heads, width), self.rotary(num_rows, width // 8)
        seen, x = self.seen(packed, num_rows, width), self.normal(num_rows, MODEL)
        return self.ops.attention(x, layer, rotary, lambda latent: seen)

    def _stored(self, kind: str, width: int, groups: int, per: int) -> BoundRecords:
        values, group = GROUPS[kind]
        size = width // values
        buffer = torch.zeros(groups, per, size + width // group, dtype=torch.uint8, device=self.ops.device)
        where = self.ops.bind_records(kind, width, buffer[..., :size], buffer[..., size:])
        places = torch.arange(groups * per, device=self.ops.device)
        self.ops.store_records(where, self.normal(groups * per, width), places)
        return where


def rows_of(seen: Seen, rows: slice) -> Seen:
    """What some of the rows see."""
    if isinstance(seen, SeenRows):
        return replace(seen, window_slots=seen.window_slots[rows], main_slots=seen.main_slots[rows])
    pages = replace(seen.pages, table=seen.pages.table[rows])
    return SeenRecords(seen.window, seen.window_slots[rows], pages, seen.entries[rows])


def separate(ops: Ops, q: torch.Tensor, seen: Seen, sink: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """[T, H, C] -> [T, H, C]: rotation, attention and rotation back as three ops."""
    turn = (rotary.cos, rotary.sin, rotary.positions)
    queries = ops.rotate_(q.clone(), *turn)
    if isinstance(seen, SeenRows):
        rows = (seen.window, seen.window_slots, seen.main, seen.main_slots)
        mixed = ops.sparse_attention(queries, *rows, sink)
    else:
        mixed = ops.attend_records(queries, seen.window, seen.window_slots, seen.pages, seen.entries, sink)
    return ops.rotate_(mixed, *turn, inverse=True)
