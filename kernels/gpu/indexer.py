"""Index scores and two-level selection of compressed entries, profile strict (model.md sections 4.3 to 4.5).

A dot product is a chain over ascending channels, a score a chain over ascending heads. Scores leave the
kernel as ordered integers, since they are only compared. A row longer than what is held of it is scored in
parts, of which the largest key of each block stays, and its best blocks once more.

Legend: T rows, Hi index heads, Ci index width, L scored positions of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import greater, ordered, to_bf16
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch, power_of_two
from deepinfer.kernels.gpu.selection import select_top

_ENTRIES, _CHANNELS, _BLOCKS = 64, 32, 256
_HELD = 16384
"""Entries of a row whose keys are held at a time."""
_SCRATCH_KEYS = 1 << 26
"""Of all rows: 256 MiB."""


@kernel
def _score_kernel(
    q: Ptr,
    w: Ptr,
    pool: Ptr,
    base: Ptr,
    counts: Ptr,
    blocks: Ptr,
    keys: Ptr,
    num_heads: int,
    width: int,
    length: int,
    block_size: int,
    WITHIN: tl.constexpr,
    BH: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BE + tl.arange(0, BE)
    h = tl.arange(0, BH)
    entry = place
    visible = place < length
    if WITHIN:
        block = tl.load(blocks + row * (length // block_size) + place // block_size, visible, other=-1)
        entry = block * block_size + place % block_size
        visible = visible & (block >= 0)
    visible = visible & (entry < tl.load(counts + row))
    slots = tl.load(base + row) + entry
    dots = tl.zeros((BH, BE), tl.float32)
    for first in range(0, width, BC):
        c = first + tl.arange(0, BC)
        places = (row * num_heads + h)[:, None] * width + c[None, :]
        a = tl.load(q + places, (h < num_heads)[:, None] & (c < width)[None, :], other=0.0)
        inside = (c < width)[:, None] & visible[None, :]
        b = tl.load(pool + slots[None, :] * width + c[:, None], inside, other=-0.0)
        dots = tl.dot(a, b, dots, input_precision="ieee")
    if BF16:
        dots = to_bf16(dots)
    dots = greater(dots, 0.0)
    score = tl.zeros((BE,), tl.float32)
    for head in range(0, num_heads):
        one = tl.sum(tl.where((h == head)[:, None], dots, 0.0), axis=0)  # one term and zeros: exact
        weight = tl.zeros((BE,), tl.float32) + tl.load(w + row * num_heads + head)
        score = score + to_bf16(one * weight) if BF16 else tl.fma(one, weight, score)
    if BF16:
        score = to_bf16(score)
    tl.store(keys + row * length + place, tl.where(visible, ordered(score), -2147483648), place < length)


@kernel
def _block_kernel(
    keys: Ptr, counts: Ptr, best: Ptr, length: int, num_blocks: int, block_size: int, B: tl.constexpr
) -> None:
    """Largest key of every block of a row; the newest block is above all, blocks past it are absent."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * B + tl.arange(0, B)
    count = tl.load(counts + row)
    largest = tl.full((B,), -2147483648, tl.int32)
    for i in range(0, block_size):
        place = block * block_size + i
        key = tl.load(keys + row * length + place, (place < length) & (place < count), other=-2147483648)
        largest = tl.maximum(largest, key)
    largest = tl.where(block == (count - 1) // block_size, 2147483647, largest)
    largest = tl.where((count > 0) & (block * block_size < count), largest, -2147483648)
    tl.store(best + row * num_blocks + block, largest, block < num_blocks)


def _scores(
    q: torch.Tensor,
    w: torch.Tensor,
    pool: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    blocks: torch.Tensor | None,
    block_size: int,
    length: int,
    bf16: bool,
) -> torch.Tensor:
    """Ordered keys int32 [T, length]."""
    num_rows, num_heads, width = q.shape
    keys = torch.empty(num_rows, length, dtype=torch.int32, device=q.device)
    table = counts if blocks is None else blocks
    launch(
        _score_kernel,
        (num_rows, ceil_div(length, _ENTRIES)),
        *(q, w, pool, base, counts, table, keys, num_heads, width, length, block_size),
        WITHIN=blocks is not None,
        BH=max(16, power_of_two(num_heads)),
        BE=_ENTRIES,
        BC=_CHANNELS,
        BF16=bf16,
    )
    return keys


def index_select(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    longest: int,
    top: int,
    num_blocks: int,
    block_size: int,
    bf16: bool,
    held: int = _HELD,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Top entries of every row over all its visible entries, and its candidate blocks; see ``Ops``.

    ``longest`` sizes the scores that are kept of a row, up to ``held``; that moves no bit.
    """
    num_rows = q.shape[0]
    queries, weights, pool = q.contiguous(), w.contiguous(), keys.contiguous()
    entries = torch.full((num_rows, top), -1, dtype=torch.int32, device=q.device)
    blocks = torch.full((num_rows, num_blocks), -1, dtype=torch.int32, device=q.device)
    if longest == 0:
        return entries, blocks
    held = max(held // block_size, top + 1) * block_size
    step = max(1, _SCRATCH_KEYS // (min(longest, held) + longest // block_size))
    for row in range(0, num_rows, step):
        part = slice(row, min(row + step, num_rows))
        places = base[part].contiguous(), counts[part].contiguous()
        rows = _Rows(queries[part], weights[part], pool, *places, block_size, bf16)
        if longest <= held:
            scored = rows.keys(longest)
            entries[part] = select_top(scored, top)
            best = _best(scored, rows.counts, block_size) if num_blocks else scored
        else:  # the best entries lie in as many best blocks (``select_blocks.py``), beside the newest one
            starts = range(0, longest, held)
            best = torch.cat([rows.after(low).best(min(held, longest - low)) for low in starts], 1)
            entries[part] = rows.top_within(select_top(best, top + 1), top)
        if num_blocks:
            blocks[part] = select_top(best, num_blocks)
    return entries, blocks


@dataclass(frozen=True)
class _Rows:
    """Contiguous arguments of ``index_select`` for some rows."""

    q: torch.Tensor
    w: torch.Tensor
    pool: torch.Tensor
    base: torch.Tensor
    counts: torch.Tensor
    block_size: int
    bf16: bool

    def after(self, first: int) -> _Rows:
        """The same rows, without their first entries."""
        return replace(self, base=self.base + first, counts=self.counts - first)

    def keys(self, length: int, blocks: torch.Tensor | None = None) -> torch.Tensor:
        """Ordered keys int32 [T, length] of the first entries, or of those of ``blocks``."""
        places = self.base, self.counts, blocks, self.block_size
        return _scores(self.q, self.w, self.pool, *places, length, self.bf16)

    def best(self, length: int) -> torch.Tensor:
        """The largest key of each block of the first entries; their keys are gone with this call."""
        return _best(self.keys(length), self.counts, self.block_size)

    def top_within(self, blocks: torch.Tensor, top: int) -> torch.Tensor:
        """Top entries of ``blocks`` int32 [T, Nb]."""
        scored = self.keys(blocks.shape[1] * self.block_size, blocks)
        return select_top(scored, top, blocks, self.block_size)


def _best(keys: torch.Tensor, counts: torch.Tensor, block_size: int) -> torch.Tensor:
    """Keys [T, L] -> largest keys of blocks [T, ceil(L / block_size)]."""
    num_rows, length = keys.shape
    num_blocks = ceil_div(length, block_size)
    best = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=keys.device)
    grid = (num_rows, ceil_div(num_blocks, _BLOCKS))
    launch(_block_kernel, grid, keys, counts, best, length, num_blocks, block_size, B=_BLOCKS)
    return best


def index_select_within(
    q: torch.Tensor,
    w: torch.Tensor,
    keys: torch.Tensor,
    base: torch.Tensor,
    counts: torch.Tensor,
    blocks: torch.Tensor,
    block_size: int,
    top: int,
    bf16: bool,
) -> torch.Tensor:
    """Top entries among each row's candidate ``blocks`` int32 [T, Nb]; see ``Ops``."""
    args = (q.contiguous(), w.contiguous(), keys.contiguous(), base.contiguous(), counts.contiguous())
    return _Rows(*args, block_size, bf16).top_within(blocks.to(torch.int32).contiguous(), top)
