"""A drafted block."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from deepinfer.engine.api import Float32Array
from deepinfer.engine.step_plan import Int64

Found = tuple[Int64, Float32Array]
"""Tokens and confidences."""


class Drafts:
    """What may follow the known tokens of a sequence.

    They may be on their way still: how many there are is known, and who asks for anything else waits.
    """

    __slots__ = ("_found", "_wait", "size")

    def __init__(self, tokens: Int64, confidences: Float32Array) -> None:
        """int64 [B]; float32 [B], estimated probability that one is accepted if those before it were."""
        self.size = len(tokens)
        self._found: Found | None = (tokens, confidences)
        self._wait: Callable[[], Found] | None = None

    @classmethod
    def coming(cls, size: int, wait: Callable[[], Found]) -> Drafts:
        """``size`` drafts that ``wait`` waits for."""
        made = cls.__new__(cls)
        made.size, made._found, made._wait = size, None, wait
        return made

    def wait(self) -> Found:
        """Until they are there; then nobody reads the contexts that they were made from."""
        if self._found is None:
            assert self._wait is not None, "one of both is known"
            self._found, self._wait = self._wait(), None
        return self._found

    @property
    def tokens(self) -> Int64:
        """int64 [B]."""
        return self.wait()[0]

    @property
    def confidences(self) -> Float32Array:
        """float32 [B]."""
        return self.wait()[1]


NO_DRAFTS = Drafts(np.empty(0, np.int64), np.empty(0, np.float32))
"""Nothing was drafted."""


def confidences_of(blocks: Items[Drafts], width: int) -> Float32Array:
    """float32 [n, width] of several blocks, cut there; 0 behind the end of one."""
    found = np.zeros((len(blocks), width), np.float32)
    sizes = np.array([block.size for block in blocks])
    for size in set(sizes.tolist()):
        mine = np.array([block.confidences for block in blocks if block.size == size])
        found[sizes == size, : min(size, width)] = mine[:, :width]
    return found
