"""Copies of whole rows of bytes on the device: cache blocks, and records that snapshots keep.

A program moves one stretch of one row, in the widest words that rows of both sides consist of.

Legend: n pairs of rows, b bytes of a row.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch, power_of_two
from deepinfer.kernels.row_copies import check_copy

_WORDS = {8: torch.int64, 4: torch.int32, 1: torch.int8}
STRETCH = 1024
"""Words of a program."""


@kernel
def _copy_rows_kernel(
    target: Ptr,
    to: Ptr,
    source: Ptr,
    rows: Ptr,
    length: int,
    target_step: int,
    source_step: int,
    num_targets: int,
    num_sources: int,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    pair, i = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, here = tl.load(to + pair).to(tl.int64), tl.load(rows + pair).to(tl.int64)
    named = (there >= 0) & (there < num_targets) & (here >= 0) & (here < num_sources)
    inside = (i < length) & named
    tl.store(target + there * target_step + i, tl.load(source + here * source_step + i, inside), inside)


def copy_rows_(
    target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """See ``Ops.copy_rows_``; a row outside is skipped, as an error would have to be waited for."""
    check_copy(target, to, source, rows)
    sides = (target, source)
    size = next(
        size
        for size in _WORDS
        if all(t.shape[1] % size == t.stride(0) % size == t.data_ptr() % size == 0 for t in sides)
    )
    length = target.shape[1] // size
    block = min(STRETCH, power_of_two(length))
    launch(
        _copy_rows_kernel,
        (ceil_div(length, block), len(to)),
        *(_as_words(target, size), to.contiguous(), _as_words(source, size), rows.contiguous(), length),
        *(target.stride(0) // size, source.stride(0) // size, len(target), len(source)),
        BLOCK=block,
    )
    return target


def _as_words(rows: torch.Tensor, size: int) -> torch.Tensor:
    """The same bytes in words of ``size``."""
    return rows.view(_WORDS[size])
