"""What selections of ordered 16-bit keys share: the search for a threshold, and places in the answer.

A search tries two values at a time; integers are counted, in any order.

Legend: [R, n] keys of a row as int32, -32768 is absent.
"""

from __future__ import annotations

import triton.language as tl

from deepinfer.kernels.gpu.launching import Block, device


def check_size(count: int) -> None:
    """Two counts of keys share a word.

    Raises:
        ValueError: more keys than a search counts.
    """
    if count >= 1 << 15:
        raise ValueError(f"selection: {count} keys at a time, less than {1 << 15} can be counted")


@device
def reached(largest: Block, R: tl.constexpr, TOP: tl.constexpr) -> Block:
    """A value that ``TOP`` or more keys reach, or that of absence; ``largest`` [R] of groups of keys.

    Of as many groups as keys are wanted, each has its largest one: all of these reach the smallest of them.
    """
    low = tl.min(largest, axis=0) * 0 - 32768
    if R >= TOP:
        low = tl.min(tl.max(tl.reshape(largest, (TOP, R // TOP), can_reorder=True), axis=1), axis=0)
    return low


@device
def search(
    u: Block, low: Block, high: Block, first: Block, second: Block, top: int, FEW: tl.constexpr
) -> tuple[Block, Block, Block]:
    """A threshold of ``u`` [R, n]: less than ``top`` lie above it, with those that equal it ``top`` or more
    do, or all; how many lie above; and the smallest value that less than ``top / FEW`` were seen to reach.

    ``top`` or more reach ``low``, or it is that of absence; none reaches ``high``. ``first`` and ``second``
    are tried first, in ascending order, above ``low``.
    """
    over, few = low * 0, high
    while high - low > 1:
        both = (u >= first).to(tl.int32) + ((u >= second).to(tl.int32) << 16)
        total = tl.sum(tl.sum(both, axis=1), axis=0)
        more, less = total & 0xFFFF, total >> 16
        few = tl.where(less * FEW < top, tl.minimum(few, second), few)
        few = tl.where(more * FEW < top, tl.minimum(few, first), few)
        # no more than are wanted: all of them, as if they lay above what is just below
        exact = (less == top) | (more == top)
        found = tl.where(less == top, second, first)
        over = tl.where(less >= top, over, tl.where(more >= top, less, more))
        high = tl.where(less >= top, high, tl.where(more >= top, second, first))
        low = tl.where(less >= top, second, tl.where(more >= top, first, low))
        over = tl.where(exact, top, over)
        high, low = tl.where(exact, found, high), tl.where(exact, found - 1, low)
        step = tl.maximum((high - low) // 3, 1)
        first, second = low + step, low + 2 * step
    return low, over, few


@device
def places(u: Block, threshold: Block, over: Block, top: int) -> tuple[Block, Block, Block]:
    """Which of ``u`` [R, n] are chosen, their places in the answer, and how many; ties to the first."""
    above, equal = (u > threshold).to(tl.int32), ((u == threshold) & (u > -32768)).to(tl.int32)
    both = (above << 16) | equal
    own = tl.sum(both, axis=1)
    wanted = top - over
    both = tl.cumsum(both, axis=1) + (tl.cumsum(own, axis=0) - own)[:, None]
    rank = both & 0xFFFF
    keep = (above > 0) | ((equal > 0) & (rank <= wanted))
    return keep, (both >> 16) + tl.minimum(rank, wanted) - 1, tl.where(threshold > -32768, top, over)
