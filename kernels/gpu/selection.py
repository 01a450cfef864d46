"""Exact top-k of ordered int32 keys, ties to the lowest index: a search over the bits of the threshold.

Only integers are counted, so there is no order to keep and the number of threads cannot matter. One program
per row; the answer is written in ascending order.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.launching import Block, Ptr, device, kernel, launch

ABSENT = -(2**31)
"""A key below that of every number: an entry that must not be chosen."""
NEWEST = 2**31 - 1
_BLOCK = 1024


@device
def unsigned(keys: Block) -> Block:
    """int32 keys as int64 from 0, in the same order; ``ABSENT`` becomes 0."""
    return keys.to(tl.int64) + 2147483648


@kernel
def _select_kernel(
    keys: Ptr,
    blocks: Ptr,
    chosen: Ptr,
    length: int,
    top: int,
    block_size: int,
    WITHIN: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """The indices of the ``top`` largest keys of a row of ``length``.

    WITHIN: position p stands for entry ``blocks[p // block_size] * block_size + p % block_size``.
    """
    row = tl.program_id(0).to(tl.int64)
    line, out = keys + row * length, chosen + row * top
    lane = tl.arange(0, B)
    present = row * 0
    for first in range(0, length, B):
        u = unsigned(tl.load(line + first + lane, first + lane < length, other=-2147483648))
        present += tl.sum((u > 0).to(tl.int64), axis=0)
    threshold = row * 0  # in the end the largest value that at least ``top`` keys reach
    if present > top:
        for i in range(0, 32):
            bit = row * 0 + 1 << (31 - i)
            reached = row * 0
            for first in range(0, length, B):
                u = unsigned(tl.load(line + first + lane, first + lane < length, other=-2147483648))
                reached += tl.sum((u >= threshold + bit).to(tl.int64), axis=0)
            threshold += bit * (reached >= top).to(tl.int64)  # not a selection: Ascend has none of int64
    above = row * 0
    for first in range(0, length, B):
        u = unsigned(tl.load(line + first + lane, first + lane < length, other=-2147483648))
        above += tl.sum((u > threshold).to(tl.int64), axis=0)
    # of those that equal the threshold, lowest first
    wanted = (top - above) * (threshold > 0).to(tl.int64)
    placed, equals = row * 0, row * 0
    for first in range(0, length, B):
        place = first + lane
        u = unsigned(tl.load(line + place, place < length, other=-2147483648))
        is_equal = (u == threshold).to(tl.int64)
        rank = equals + tl.cumsum(is_equal, axis=0)
        keep = (u > threshold) | ((is_equal > 0) & (rank <= wanted))
        target = placed + tl.cumsum(keep.to(tl.int64), axis=0) - 1
        entry = place
        if WITHIN:
            block = tl.load(blocks + row * (length // block_size) + place // block_size, keep, other=0)
            entry = block * block_size + place % block_size
        tl.store(out + target, entry, keep)
        placed += tl.sum(keep.to(tl.int64), axis=0)
        equals += tl.sum(is_equal, axis=0)


def select_top(
    keys: torch.Tensor, top: int, blocks: torch.Tensor | None = None, block_size: int = 1
) -> torch.Tensor:
    """Keys int32 [T, L] -> indices int32 [T, top], ascending, then -1.

    With ``blocks`` int32 [T, L / block_size], indices are those of the entries of these blocks.
    """
    num_rows, length = keys.shape
    chosen = torch.full((num_rows, top), -1, dtype=torch.int32, device=keys.device)
    if top and length:
        table = keys if blocks is None else blocks
        arguments = (keys, table, chosen, length, top, block_size)
        launch(_select_kernel, (num_rows,), *arguments, WITHIN=blocks is not None, B=_BLOCK)
    return chosen
