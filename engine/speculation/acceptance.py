"""What verification accepts: a draft that is the token plain decoding chooses at its position.

The sampler is keyed by (seed, absolute position), so row j of a sequence draws the very token that plain
decoding would, as long as the rows before it were accepted. The tokens that leave the engine are always the
sampler's own; a draft only decides how many of them are known after one step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deepinfer.engine.step_plan import Int64


def num_accepted(sampled: Int64, drafts: Int64) -> int:
    """Leading drafts that are what was sampled in their place.

    Args:
        sampled: int64 [1 + k], sampled by the rows of a sequence, in order.
        drafts: int64 [k], what those rows but the first one were computed from.
    """
    wrong = np.flatnonzero(sampled[:-1] != drafts)
    return int(wrong[0]) if len(wrong) else len(drafts)


def emitted_rows(sampled: Int64, drafts: Sequence[Int64]) -> list[Int64]:
    """Rows of each sequence whose samples stand: those of accepted drafts and the one after them.

    Args:
        sampled: int64 [R], of all sequences, one after the other.
        drafts: int64 [k] of each sequence, which has k + 1 rows.
    """
    rows, first = [], 0
    for mine in drafts:
        end = first + len(mine) + 1
        rows.append(np.arange(first, first + num_accepted(sampled[first:end], mine) + 1))
        first = end
    return rows
