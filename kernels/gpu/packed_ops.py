"""Attention and index scan on packed records: which kernel a chip and a shape get.

Hopper chips have kernels of their own for the released widths; everything else, and the interpreter, runs the
Triton ones. Scan keys have equal bits in both (measured); attention adds in another order, so a chip and a
shape have one kernel for any number of rows.
"""

from __future__ import annotations

import torch

from deepinfer.kernels.gpu import hopper_attention, hopper_scan, index_scan, packed_attention
from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.index_scan import ScanTile
from deepinfer.kernels.gpu.records import BoundRecords

_LONG, _WITHIN = ScanTile(128, 16, 3, 4), ScanTile(128, 8, 3, 4)


def attend(
    q: torch.Tensor,
    window: BoundRecords,
    window_slots: torch.Tensor,
    main: BoundRecords,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """See ``packed_attention.attend``; ``workspace`` is scratch of the stream, if there is one."""
    if has_wgmma(q.device) and q.shape[2] == hopper_attention.WIDTH:
        return hopper_attention.attend(q, window, window_slots, main, main_slots, sink, workspace)
    return packed_attention.attend(q, window, window_slots, main, main_slots, sink)


def scan(
    q: torch.Tensor,
    w: torch.Tensor,
    pool: BoundRecords,
    table: torch.Tensor,
    counts: torch.Tensor,
    length: int,
    block_size: int,
    blocks: torch.Tensor | None = None,
    keys: bool = True,
    best: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``index_scan.scan``."""
    if has_wgmma(q.device) and hopper_scan.fits(q, pool, block_size):
        return hopper_scan.scan(q, w, pool, table, counts, length, block_size, None, blocks, keys, best)
    tile = _LONG if blocks is None else _WITHIN
    return index_scan.scan(q, w, pool, table, counts, length, block_size, tile, blocks, keys, best)
