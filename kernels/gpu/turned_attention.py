"""Attention with its rotations, profile fast: in one launch where the kernel has any width.

The kernels of the released widths take queries as they are, so rotations stay launches of their own there.
"""

from __future__ import annotations

import torch

from deepinfer.kernels.attention_operands import Seen, SeenRows
from deepinfer.kernels.gpu import pool_attention, record_ops, rope
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.operands import Rotary


def attend(
    q: torch.Tensor, seen: Seen, sink: torch.Tensor, rotary: Rotary, workspace: Workspace
) -> torch.Tensor:
    """Queries rotated, attention to what they see, and what they find rotated back.

    Args:
        q: float32 [T, H, C] of bfloat16 values, which may be written over.
        seen: by T rows.
        sink: float32 [H].
        rotary: of the rows.
        workspace: scratch of the stream.

    Returns:
        Float32 [T, H, C], the bits of the three ops one after the other.
    """
    if isinstance(seen, SeenRows):
        rows = (seen.window, seen.window_slots, seen.main, seen.main_slots)
        return pool_attention.sparse_attention(q, *rows, sink, rotary)
    records = (seen.window, seen.window_slots, seen.pages, seen.entries)
    if not record_ops.has_released_width(q, seen.window, seen.pages, seen.entries):
        return pool_attention.attend_records(q, *records, sink, rotary=rotary)
    return _turn(record_ops.attend(_turn(q, rotary, False), *records, sink, workspace), rotary, True)


def _turn(x: torch.Tensor, rotary: Rotary, inverse: bool) -> torch.Tensor:
    return rope.rotate_(x, rotary.cos, rotary.sin, rotary.positions, inverse, True)
