"""Is a recorded history of reads and writes of one register what some one-at-a-time order would have given.

The search of Wing and Gong with the memory of Lowe: an operation may come next if no other one that is not
placed yet had ended before it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Operation(NamedTuple):
    """One call: when it began and ended, ``write`` or ``read``, and the value it wrote or saw."""

    began: float
    ended: float
    kind: str
    value: str | None


def is_linearizable(history: Sequence[Operation], first: str | None = None) -> bool:
    """Whether the operations on one register, which holds ``first`` at first, can be put in one order."""
    operations = sorted(history)
    seen: set[tuple[frozenset[int], str | None]] = set()
    # Placed operations are kept as those beyond the longest placed beginning: the set stays small.
    stack: list[tuple[int, frozenset[int], str | None]] = [(0, frozenset(), first)]
    while stack:
        done, beyond, value = stack.pop()
        while done in beyond:
            beyond -= {done}
            done += 1
        if done == len(operations):
            return True
        state = (beyond | {-done}, value)
        if state in seen:
            continue
        seen.add(state)
        waiting = [i for i in range(done, len(operations)) if i not in beyond]
        earliest_end = min(operations[i].ended for i in waiting)
        for index in waiting:
            operation = operations[index]
            if operation.began > earliest_end:
                break
            if operation.kind == "write":
                stack.append((done, beyond | {index}, operation.value))
            elif operation.value == value:
                stack.append((done, beyond | {index}, value))
    return False
