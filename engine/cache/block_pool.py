"""Who holds which cache block: reference counts, a first-in first-out free list, cached blocks on top.

Numbers only: the bytes of a block live elsewhere (engine.md section 4.2). A block is in one of three states:

- *free*: nobody holds it and its content means nothing;
- *used*: its reference count is at least 1;
- *cached*, at count 0: nobody holds it, but its content is known to an index and may be shared again.

A used block can be known to an index as well; it then becomes cached, not free, when its last holder lets go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from deepinfer.engine.cache.eviction import EvictionOrder

NO_BLOCK = 0
"""The block number that means "none"; no pool ever hands it out."""


class BlockPool:
    """Blocks 1..num_blocks, all free at first; for one thread.

    Indexes such as the prefix tree call the pool and never the reverse, but for one notice: when a cached
    block is evicted, the function given with it is called with its number. The order of eviction spans all
    indexes. Every misuse (a block out of range, freed twice, shared while free) is a ``ValueError`` that
    leaves the pool as it was.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make a pool; raises ``ValueError`` if it would hold no block."""
        if num_blocks < 1:
            raise ValueError(f"block pool: num_blocks is {num_blocks}; give at least 1")
        self._num_blocks = num_blocks
        self._refcounts = [0] * (num_blocks + 1)
        self._free = deque(range(1, num_blocks + 1))
        self._num_used = 0
        self._on_evict: dict[int, Callable[[int], None]] = {}
        self._order = EvictionOrder()

    @property
    def num_blocks(self) -> int:
        """All blocks: free, used and cached."""
        return self._num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with a reference count of at least 1, cached or not."""
        return self._num_used

    @property
    def num_cached(self) -> int:
        """Blocks that an index alone keeps: cached, at reference count 0."""
        return self._num_blocks - len(self._free) - self._num_used

    @property
    def num_available(self) -> int:
        """The largest count that ``allocate`` would grant now: free blocks and those that can be evicted.

        Less than ``num_free + num_cached`` when a cached block has a descendant that somebody holds.
        """
        return len(self._free) + self._order.num_evictable

    def refcount(self, block: int) -> int:
        """Number of holders of a block; 0 if it is free or cached."""
        return self._refcounts[self._checked(block)]

    def is_cached(self, block: int) -> bool:
        """Whether an index knows the content of the block, held or not."""
        return self._checked(block) in self._order

    def is_writable(self, block: int) -> bool:
        """Whether its one holder may write to it: nobody else holds it and no index relies on its content."""
        return self.refcount(block) == 1 and block not in self._order

    def allocate(self, count: int) -> list[int] | None:
        """Hand out ``count`` blocks at reference count 1, or ``None`` and no change if so many cannot be had.

        The blocks that have been free longest come first; then cached ones are evicted, as few as needed.
        """
        if count < 0:
            raise ValueError(f"block pool: cannot allocate {count} blocks; ask for 0 or more")
        if count > self.num_available:
            return None
        self.evict(count - len(self._free))
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._refcounts[block] = 1
        self._num_used += count
        return blocks

    def share(self, block: int) -> None:
        """Add a holder to a block that is used or cached."""
        if self.refcount(block) == 0:
            if block not in self._order:
                raise ValueError(f"block pool: block {block} is free; allocate it, it has nothing to share")
            self._order.pin(block)
            self._num_used += 1
        self._refcounts[block] += 1

    def release(self, block: int) -> None:
        """Take one holder away; at count 0 the block joins the end of the free list, or stays cached.

        A caller that lets go of a whole sequence releases its last block first (engine.md section 4.2).
        """
        if self.refcount(block) == 0:
            raise ValueError(f"block pool: block {block} has no holder left; release it once per holder")
        self._refcounts[block] -= 1
        if self._refcounts[block]:
            return
        self._num_used -= 1
        if block in self._order:
            self._order.unpin(block)
        else:
            self._free.append(block)

    def cache(self, block: int, *, parent: int, on_evict: Callable[[int], None]) -> None:
        """Mark a used block as known to an index: from now on it is never written, and outlives its holders.

        Args:
            block: a block with a holder, not cached yet.
            parent: cached block that must stay as long as this one, or ``NO_BLOCK``.
            on_evict: called with the number once the block is free again; must not call the pool.
        """
        if self.refcount(block) == 0 or block in self._order:
            raise ValueError(f"block pool: block {block} is free or already cached; cache a used block, once")
        if parent != NO_BLOCK and not self.is_cached(parent):
            raise ValueError(f"block pool: parent {parent} of block {block} is not cached; cache it first")
        self._order.add(block, parent)
        self._on_evict[block] = on_evict

    def touch(self, blocks: Sequence[int]) -> None:
        """Count one use, now, for all of these cached blocks; being cached was their first."""
        for block in blocks:
            if not self.is_cached(block):
                raise ValueError(f"block pool: block {block} is not cached; touch cached blocks only")
        self._order.touch(blocks)

    def evict(self, count: int) -> int:
        """Free up to ``count`` cached blocks that nobody holds; returns how many there were.

        A block goes only when none of its children is cached; of those the least recently used, then the
        deepest, then the one with the lowest number.
        """
        count = max(0, min(count, self._order.num_evictable))
        for _ in range(count):
            block = self._order.pop()
            self._free.append(block)
            self._on_evict.pop(block)(block)
        return count

    def _checked(self, block: int) -> int:
        if not 1 <= block <= self._num_blocks:
            raise ValueError(f"block pool: no block {block}; numbers run from 1 to {self._num_blocks}")
        return block
