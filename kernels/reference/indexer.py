"""Index scores and the choice of compressed entries in plain torch (model.md sections 4.3 to 4.5).

Legend: t rows, h index heads, c channels of a key, p entries in the pool, n entries that some row of a tile
may see, k chosen ones, b blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from deepinfer.kernels.reference.rounding import to_bf16
from deepinfer.kernels.reference.tiles import row_tiles

_ROWS_THAT_SHARE = 8
"""Rows of a sequence, on average, from which one product with its keys beats a copy of the keys per row."""
_HIDDEN = float("-inf")


def index_select(
    q_thc: torch.Tensor,
    w_th: torch.Tensor,
    keys_pc: torch.Tensor,
    base_t: torch.Tensor,
    counts_t: torch.Tensor,
    top: int,
    num_blocks: int,
    block_size: int,
    bf16: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``Ops.index_select``."""
    num_rows, num_heads, width = q_thc.shape
    entries_tk = torch.full((num_rows, top), -1, dtype=torch.int32)
    blocks_tb = torch.full((num_rows, num_blocks), -1, dtype=torch.int32)
    longest = int(counts_t.max()) if num_rows else 0
    for tile, shared in _tiles(base_t, longest * num_heads, longest * width):
        counts_t1 = counts_t[tile, None]
        numbers_n = torch.arange(int(counts_t1.max()))
        places_tn = base_t[tile, None] + numbers_n
        keys = keys_pc[places_tn[0]] if shared else _gather(keys_pc, places_tn)
        scores_tn = _scores(q_thc[tile], w_th[tile], keys, bf16)
        scores_tn = scores_tn.masked_fill_(numbers_n >= counts_t1, _HIDDEN)
        _best(scores_tn, numbers_n, entries_tk[tile])
        if num_blocks:
            block_scores_tb = _block_scores(scores_tn, counts_t1, block_size)
            _best(block_scores_tb, torch.arange(block_scores_tb.shape[1]), blocks_tb[tile])
    return entries_tk, blocks_tb


def index_select_within(
    q_thc: torch.Tensor,
    w_th: torch.Tensor,
    keys_pc: torch.Tensor,
    base_t: torch.Tensor,
    counts_t: torch.Tensor,
    blocks_tb: torch.Tensor,
    block_size: int,
    top: int,
    bf16: bool,
) -> torch.Tensor:
    """See ``Ops.index_select_within``."""
    num_rows, _, width = q_thc.shape
    entries_tk = torch.full((num_rows, top), -1, dtype=torch.int32)
    offsets = torch.arange(block_size)
    for tile in row_tiles(num_rows, blocks_tb.shape[1] * block_size * width):
        # candidate blocks ascend, so the entries of a row do too; block -1 stands for none
        numbers_tn = (blocks_tb[tile, :, None].long() * block_size + offsets).flatten(1)
        hidden_tn = (numbers_tn < 0) | (numbers_tn >= counts_t[tile, None])
        keys_tnc = _gather(keys_pc, base_t[tile, None] + numbers_tn)
        scores_tn = _scores(q_thc[tile], w_th[tile], keys_tnc, bf16).masked_fill_(hidden_tn, _HIDDEN)
        _best(scores_tn, numbers_tn, entries_tk[tile])
    return entries_tk


def _tiles(
    base_t: torch.Tensor, floats_per_shared_row: int, floats_per_row: int
) -> Iterator[tuple[slice, bool]]:
    """Row tiles, and whether all rows of a tile belong to one sequence and so share its keys."""
    lengths = torch.unique_consecutive(base_t, return_counts=True)[1].tolist()
    if len(base_t) < _ROWS_THAT_SHARE * len(lengths):
        for tile in row_tiles(len(base_t), floats_per_row):
            yield tile, False
        return
    start = 0
    for length in lengths:
        for tile in row_tiles(length, floats_per_shared_row):
            yield slice(start + tile.start, start + tile.stop), True
        start += length


def _gather(keys_pc: torch.Tensor, places_tn: torch.Tensor) -> torch.Tensor:
    """Keys [t, n, c]; a place outside the pool gives any key."""
    if len(keys_pc) == 0:
        return keys_pc.new_zeros(*places_tn.shape, keys_pc.shape[1])
    return functional.embedding(places_tn.clamp(0, len(keys_pc) - 1), keys_pc)


def _scores(q_thc: torch.Tensor, w_th: torch.Tensor, keys: torch.Tensor, bf16: bool) -> torch.Tensor:
    """``sum over h of relu(q_h . k_n) * w_h`` -> [t, n] for keys [n, c] of all rows, or [t, n, c]."""
    if keys.ndim == 2:
        dots_thn = (q_thc.flatten(0, 1) @ keys.T).view(*q_thc.shape[:2], len(keys))
    else:
        dots_thn = torch.bmm(q_thc, keys.transpose(1, 2))
    weighted_thn = to_bf16(dots_thn, bf16).relu_().mul_(w_th[:, :, None])
    return to_bf16(to_bf16(weighted_thn, bf16).sum(1), bf16)


def _block_scores(scores_tn: torch.Tensor, counts_t1: torch.Tensor, block_size: int) -> torch.Tensor:
    """Largest score of every block [t, b]; the newest visible block is put above all others."""
    padding = -scores_tn.shape[1] % block_size
    padded_tn = functional.pad(scores_tn, (0, padding), value=_HIDDEN)
    best_tb = padded_tn.view(len(scores_tn), -1, block_size).amax(-1)
    newest_t1 = (counts_t1 - 1) // block_size
    best_tb[torch.arange(best_tb.shape[1]) == newest_t1] = float("inf")
    return best_tb


def _best(scores_tn: torch.Tensor, numbers: torch.Tensor, out_tk: torch.Tensor) -> None:
    """Write the ``numbers`` ([n] or [t, n], ascending) of the k best visible scores, ascending.

    Ties go to the lower column. What follows the last one in ``out_tk`` stays.
    """
    size = scores_tn.shape[1]
    columns_n = torch.arange(size)
    # integers in the order of the scores, made unique by the column: top-k then has no ties to break
    bits_tn = (scores_tn + 0.0).view(torch.int32)  # -0 becomes +0
    ordered_tn = bits_tn.bitwise_xor_((bits_tn >> 31).bitwise_and_(0x7FFFFFFF))
    unique_tn = ordered_tn.long().mul_(size).sub_(columns_n)
    picked_tk = unique_tn.topk(min(out_tk.shape[1], size), sorted=False).indices
    absent_tk = scores_tn.gather(1, picked_tk) == _HIDDEN
    picked_tk = picked_tk.masked_fill_(absent_tk, size).sort().values
    chosen_tk = numbers.expand_as(scores_tn).gather(1, picked_tk.clamp(max=size - 1))
    chosen_tk = chosen_tk.masked_fill_(picked_tk == size, -1)
    out_tk[:, : chosen_tk.shape[1]] = chosen_tk
