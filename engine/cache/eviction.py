"""In which order cached blocks give way: leaf first, then oldest use, then deepest (engine.md section 11.3).

Cached blocks form a forest. A block is only worth keeping while its parent is there, so a parent outlives its
children: it cannot leave while a child is cached, and a child that somebody holds keeps all its ancestors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

# Outdated queue entries tolerated on top of two per cached block before the queue is built anew.
_SPARE_ENTRIES = 64


@dataclass(slots=True)
class _Entry:
    """What the order knows of one cached block; ``num_pins`` counts holders (0 or 1) and pinned children."""

    parent: int
    depth: int
    last_use: int
    num_pins: int = 0
    num_children: int = 0

    @property
    def may_go(self) -> bool:
        return self.num_pins == 0 and self.num_children == 0


class EvictionOrder:
    """The forest of cached blocks and the queue of those that may leave next.

    Time is a counter that moves by one with each ``add`` and ``touch``: the order depends on the calls alone.
    Averaged over a run of calls, each costs a logarithm of the number of blocks; no call scans the forest.
    """

    def __init__(self) -> None:
        """Start with no block."""
        self._entries: dict[int, _Entry] = {}
        # (last use, -depth, block); outdated entries stay behind and are skipped when they surface.
        self._queue: list[tuple[int, int, int]] = []
        self._clock = 0
        self._num_evictable = 0

    def __contains__(self, block: int) -> bool:
        """Whether the block is cached."""
        return block in self._entries

    @property
    def num_evictable(self) -> int:
        """Blocks that repeated ``pop`` would return: held neither themselves nor through a descendant."""
        return self._num_evictable

    def add(self, block: int, parent: int) -> None:
        """Enter a block that somebody holds, below a cached parent (0: it is a root), as used now."""
        self._clock += 1
        depth = 1
        if parent:
            self._entries[parent].num_children += 1
            depth += self._entries[parent].depth
        self._entries[block] = _Entry(parent, depth, self._clock)
        self._num_evictable += 1
        self.pin(block)

    def touch(self, blocks: Iterable[int]) -> None:
        """Record one use of all these cached blocks, at the same time."""
        self._clock += 1
        for block in blocks:
            entry = self._entries[block]
            entry.last_use = self._clock
            if entry.may_go:
                self._enqueue(block, entry)

    def pin(self, block: int) -> None:
        """The block found its first holder: it and its ancestors stay."""
        while block:
            entry = self._entries[block]
            entry.num_pins += 1
            if entry.num_pins > 1:
                return
            self._num_evictable -= 1
            block = entry.parent

    def unpin(self, block: int) -> None:
        """The block lost its last holder: it and those ancestors that nothing else pins may go."""
        while block:
            entry = self._entries[block]
            entry.num_pins -= 1
            if entry.num_pins:
                return
            self._num_evictable += 1
            if entry.may_go:
                self._enqueue(block, entry)
            block = entry.parent

    def pop(self) -> int:
        """Remove and return the next block to evict; ``num_evictable`` must not be 0."""
        while True:
            last_use, _, block = heapq.heappop(self._queue)
            entry = self._entries.get(block)
            # A block that was evicted and cached anew has a later last use: its old entries do not count.
            if entry is not None and entry.may_go and entry.last_use == last_use:
                break
        del self._entries[block]
        self._num_evictable -= 1
        if entry.parent:
            parent = self._entries[entry.parent]
            parent.num_children -= 1
            if parent.may_go:
                self._enqueue(entry.parent, parent)
        return block

    def _enqueue(self, block: int, entry: _Entry) -> None:
        heapq.heappush(self._queue, (entry.last_use, -entry.depth, block))
        if len(self._queue) > 2 * len(self._entries) + _SPARE_ENTRIES:
            self._queue = [(e.last_use, -e.depth, b) for b, e in self._entries.items() if e.may_go]
            heapq.heapify(self._queue)
