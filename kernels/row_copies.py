"""Copies of whole rows of bytes, such as cache blocks and records: the definition, and what a CPU runs."""

from __future__ import annotations

import torch


def check_copy(target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
    """What every kernel set asks of ``Ops.copy_rows_``.

    Raises:
        ValueError: the operands are not two matrices of bytes of one width and two lists of one length.
    """
    fits = (
        target.dtype == source.dtype == torch.uint8
        and target.ndim == source.ndim == 2
        and target.shape[1] == source.shape[1]
        and target.stride(1) == source.stride(1) == 1
        and to.shape == rows.shape == (len(to),)
    )
    if not fits:
        raise ValueError(
            f"copy_rows_: {list(to.shape)} rows of {target.dtype} {list(target.shape)} from"
            f" {list(rows.shape)} of {source.dtype} {list(source.shape)}; both must be uint8 [n, bytes]"
        )


def copy_rows_(
    target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """See ``Ops.copy_rows_``; -1 is found on the host."""
    check_copy(target, to, source, rows)
    named = (to >= 0) & (rows >= 0)
    target[to[named]] = source[rows[named]]
    return target
