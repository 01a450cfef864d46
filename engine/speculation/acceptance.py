"""What verification accepts: a draft that is the token plain decoding chooses at its position.

The sampler is keyed by (seed, absolute position), so row j of a sequence draws the very token that plain
decoding would, as long as the rows before it were accepted. The tokens that leave the engine are always the
sampler's own; a draft only decides how many of them are known after one step.
"""

from __future__ import annotations

from collections.abc import Sequence


def num_accepted(sampled: Sequence[int], drafts: Sequence[int]) -> int:
    """Leading drafts that are what was sampled in their place.

    Args:
        sampled: [1 + k], sampled by the rows of a sequence, in order.
        drafts: [k], what those rows but the first one were computed from.
    """
    for place, draft in enumerate(drafts):
        if sampled[place] != draft:
            return place
    return len(drafts)


def emitted_rows(sampled: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[range]:
    """Rows of each sequence whose samples stand: those of accepted drafts and the one after them.

    Args:
        sampled: [R], of all sequences, one after the other.
        drafts: [k] of each sequence, which has k + 1 rows.
    """
    rows, first = [], 0
    for mine in drafts:
        end = first + len(mine) + 1
        rows.append(range(first, first + num_accepted(sampled[first:end], mine) + 1))
        first = end
    return rows
