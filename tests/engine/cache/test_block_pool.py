from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from deepinfer.engine.cache import eviction
from deepinfer.engine.cache.block_pool import NO_BLOCK, BlockPool
from deepinfer.engine.cache.eviction import EvictionOrder

FUZZ = settings(max_examples=50, stateful_step_count=50)
# A control ends at its first failure, and nobody reads its smallest example.
CONTROL = settings(FUZZ, max_examples=500, phases=[Phase.generate])


class ForgetsToCountDown(BlockPool):
    def release(self, block: int) -> None:
        if self.refcount(block) != 2:
            super().release(block)


class FreesWhileShared(BlockPool):
    def release(self, block: int) -> None:
        super().release(block)
        if self.refcount(block) == 1 and not self.is_cached(block):
            self._free.append(block)


class FreesCachedBlocks(BlockPool):
    def release(self, block: int) -> None:
        super().release(block)
        if self.refcount(block) == 0 and self.is_cached(block):
            self._free.append(block)


class AllocatesWhatThereIs(BlockPool):
    def allocate(self, count: int) -> list[int] | None:
        return super().allocate(min(count, self.num_available))


class EvictsForNothing(BlockPool):
    def allocate(self, count: int) -> list[int] | None:
        self.evict(count - self.num_free)
        return super().allocate(count)


class TakesTheLastFreed(BlockPool):
    def release(self, block: int) -> None:
        num_free = self.num_free
        super().release(block)
        self._free.rotate(self.num_free - num_free)


class LetsWriteToCached(BlockPool):
    def is_writable(self, block: int) -> bool:
        return self.refcount(block) == 1


class IgnoresUse(EvictionOrder):
    def touch(self, blocks: object) -> None:
        self._clock += 1


class PinsNoAncestors(EvictionOrder):
    def pin(self, block: int) -> None:
        self._entries[block].num_pins += 1
        self._num_evictable -= 1

    def unpin(self, block: int) -> None:
        self._entries[block].parent, parent = NO_BLOCK, self._entries[block].parent
        super().unpin(block)
        self._entries[block].parent = parent


def with_order(order: type[EvictionOrder]) -> Callable[[int], BlockPool]:
    def make(num_blocks: int) -> BlockPool:
        pool = BlockPool(num_blocks)
        pool._order = order()
        return pool

    make.__name__ = order.__name__
    return make


@pytest.mark.parametrize("num_spare", [0, 64])
def test_pool_agrees_with_a_simple_model(
    pool_machine: Any, num_spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With no spare entries the queue is built anew within a run as short as these.
    monkeypatch.setattr(eviction, "_SPARE_ENTRIES", num_spare)
    run_state_machine_as_test(pool_machine, settings=FUZZ)


@pytest.mark.parametrize(
    "fault",
    [
        ForgetsToCountDown,
        FreesWhileShared,
        FreesCachedBlocks,
        AllocatesWhatThereIs,
        EvictsForNothing,
        TakesTheLastFreed,
        LetsWriteToCached,
        with_order(IgnoresUse),
        with_order(PinsNoAncestors),
    ],
    ids=lambda fault: fault.__name__,
)
def test_model_sees_a_faulty_pool(pool_machine: Any, fault: Callable[[int], BlockPool]) -> None:
    faulty = type("FaultyMachine", (pool_machine,), {"make_pool": staticmethod(fault)})
    with pytest.raises((AssertionError, IndexError)):
        run_state_machine_as_test(faulty, settings=CONTROL)


def test_blocks_come_in_order_and_return_to_the_end_of_the_queue() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [1, 2, 3]
    for block in (3, 1):
        pool.release(block)
    assert pool.allocate(4) is None
    assert pool.allocate(0) == []
    assert pool.allocate(3) == [4, 3, 1]


def test_free_blocks_are_taken_before_cached_ones_and_no_more_is_evicted_than_needed() -> None:
    pool, evicted = BlockPool(4), list[int]()
    for block in pool.allocate(3) or []:
        pool.cache(block, parent=NO_BLOCK, on_evict=evicted.append)
        pool.release(block)
    assert (pool.num_free, pool.num_cached, pool.num_used, pool.num_available) == (1, 3, 0, 4)
    assert pool.allocate(1) == [4]
    assert evicted == []
    assert pool.allocate(2) == [1, 2]
    assert evicted == [1, 2]


def test_queue_does_not_grow_with_the_number_of_uses() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or [0]
    pool.cache(block, parent=NO_BLOCK, on_evict=lambda block: None)
    for _ in range(1000):
        pool.release(block)
        pool.touch([block])
        pool.share(block)
    assert len(pool._order._queue) < 100


@pytest.mark.parametrize("call", [lambda: BlockPool(0), lambda: BlockPool(1).allocate(-1)])
def test_impossible_sizes_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="block pool"):
        call()
