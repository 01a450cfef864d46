"""Random calls on a block pool against a model of it; loaded by conftest.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deepinfer.engine.cache.block_pool import NO_BLOCK, BlockPool

NUM_BLOCKS = 7
PICK = st.integers(0, 2 * NUM_BLOCKS)


def pick_from(options: list[int], pick: int) -> int:
    return options[pick % len(options)]


class PoolMachine(RuleBasedStateMachine):
    """A model that scans everything and keeps no totals; a faulty pool can take the place of the real one."""

    make_pool: Callable[[int], BlockPool] = BlockPool

    def __init__(self) -> None:
        super().__init__()
        self.pool = type(self).make_pool(NUM_BLOCKS)
        self.holders = dict.fromkeys(range(1, NUM_BLOCKS + 1), 0)
        self.free = list(self.holders)
        self.parent: dict[int, int] = {}  # of cached blocks
        self.last_use: dict[int, int] = {}  # of cached blocks
        self.time = 0
        self.evicted: list[int] = []
        self.expected_evicted: list[int] = []

    def used_uncached(self) -> list[int]:
        return [b for b in self.holders if self.holders[b] and b not in self.parent]

    def depth(self, block: int) -> int:
        return 1 + self.depth(self.parent[block]) if block else 0

    def evict_in_model(self) -> bool:
        leaves = [b for b in self.parent if not self.holders[b] and b not in self.parent.values()]
        if not leaves:
            return False
        victim = min(leaves, key=lambda b: (self.last_use[b], -self.depth(b), b))
        del self.parent[victim], self.last_use[victim]
        self.free.append(victim)
        self.expected_evicted.append(victim)
        return True

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def allocate(self, count: int) -> None:
        before = (list(self.free), dict(self.parent), dict(self.last_use), list(self.expected_evicted))
        possible = True
        while possible and len(self.free) < count:
            possible = self.evict_in_model()
        got = self.pool.allocate(count)
        if not possible:
            self.free, self.parent, self.last_use, self.expected_evicted = before
            assert got is None
            return
        expected, self.free = self.free[:count], self.free[count:]
        assert got == expected
        for block in expected:
            self.holders[block] = 1

    @precondition(lambda self: len(self.free) < NUM_BLOCKS)
    @rule(pick=PICK)
    def share(self, pick: int) -> None:
        block = pick_from([b for b in self.holders if b not in self.free], pick)
        self.pool.share(block)
        self.holders[block] += 1

    @precondition(lambda self: any(self.holders.values()))
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        block = pick_from([b for b in self.holders if self.holders[b]], pick)
        self.pool.release(block)
        self.holders[block] -= 1
        if not self.holders[block] and block not in self.parent:
            self.free.append(block)

    @precondition(lambda self: self.used_uncached())
    @rule(pick=PICK, pick_parent=PICK)
    def cache(self, pick: int, pick_parent: int) -> None:
        block = pick_from(self.used_uncached(), pick)
        parent = pick_from([NO_BLOCK, *self.parent], pick_parent)
        self.pool.cache(block, parent=parent, on_evict=self.evicted.append)
        self.time += 1
        self.parent[block], self.last_use[block] = parent, self.time

    @precondition(lambda self: self.parent)
    @rule(picks=st.lists(PICK, min_size=1, max_size=3))
    def touch(self, picks: list[int]) -> None:
        blocks = [pick_from(list(self.parent), pick) for pick in picks]
        self.pool.touch(blocks)
        self.time += 1
        self.last_use.update(dict.fromkeys(blocks, self.time))

    @rule(block=st.integers(-1, NUM_BLOCKS + 1))
    def misuse(self, block: int) -> None:
        """Whatever may not be done with this block now is refused; the invariant then sees no change."""
        calls: list[Callable[[], object]] = []
        if not self.holders.get(block):
            calls.append(lambda: self.pool.release(block))
            if block not in self.parent:
                calls.append(lambda: self.pool.share(block))
        if block not in self.used_uncached():
            calls.append(lambda: self.pool.cache(block, parent=NO_BLOCK, on_evict=self.evicted.append))
        if block not in self.parent:
            calls.append(lambda: self.pool.touch([*self.parent, block]))
            if block != NO_BLOCK and self.used_uncached():
                child = self.used_uncached()[0]
                calls.append(lambda: self.pool.cache(child, parent=block, on_evict=self.evicted.append))
        for call in calls:
            with pytest.raises(ValueError, match=f"block pool: .*{block}"):
                call()

    @precondition(lambda self: any(self.holders.values()))
    @rule()
    def release_everything(self) -> None:
        for pick in range(sum(self.holders.values())):
            self.release(pick)

    @rule(count=st.integers(-1, NUM_BLOCKS))
    def evict(self, count: int) -> None:
        expected = sum(self.evict_in_model() for _ in range(count))
        assert self.pool.evict(count) == expected

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        assert [self.pool.refcount(b) for b in self.holders] == list(self.holders.values())
        assert [self.pool.is_cached(b) for b in self.holders] == [b in self.parent for b in self.holders]
        writable = [self.holders[b] == 1 and b not in self.parent for b in self.holders]
        assert [self.pool.is_writable(b) for b in self.holders] == writable
        num_used = sum(count > 0 for count in self.holders.values())
        assert (self.pool.num_used, self.pool.num_free) == (num_used, len(self.free))
        assert self.pool.num_cached == sum(not self.holders[b] for b in self.parent)
        assert self.pool.num_used + self.pool.num_free + self.pool.num_cached == self.pool.num_blocks
        assert self.evicted == self.expected_evicted

    def teardown(self) -> None:
        for block in self.holders:
            for _ in range(self.pool.refcount(block)):
                self.pool.release(block)
        self.pool.evict(self.pool.num_cached)
        got = self.pool.allocate(NUM_BLOCKS)
        assert sorted(got or []) == list(range(1, NUM_BLOCKS + 1)), "a block is lost or doubled"
