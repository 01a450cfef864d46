"""The launch rule of Ascend: a grid is cut where a launch would hold too many programs.

An op computes each row by itself, so calling it on one block of rows after the other moves no bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Rows = tuple[torch.Tensor, ...]


def rows_of_a_call(max_programs: int, programs_a_row: int, fixed: int = 0) -> int:
    """Rows that one call may take when each brings ``programs_a_row`` programs, beside ``fixed`` ones.

    Raises:
        ValueError: a single row is too many.
    """
    rows = (max_programs - fixed) // programs_a_row
    if rows < 1:
        raise ValueError(
            f"kernel set 'ascend': a row needs {programs_a_row + fixed} programs, "
            f"a launch holds {max_programs}"
        )
    return rows


def by_rows(function: Callable[..., Rows], rows: int, *operands: torch.Tensor) -> Rows:
    """Call ``function`` on blocks of ``rows`` rows of all operands; its results, one after the other.

    Args:
        function: takes the operands' blocks and gives tensors whose first axis is the rows.
        rows: most rows of one call.
        operands: tensors with the same first axis.
    """
    total = operands[0].shape[0]
    if total <= rows:
        return function(*operands)
    parts = [function(*(x[i : i + rows] for x in operands)) for i in range(0, total, rows)]
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
