from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.cache.prefix_tree import PrefixTree

B = 128


def put(tree: PrefixTree[str], pool: BlockPool, ids: list[int], snapshots: dict[int, str]) -> list[int]:
    """Let a sequence come, be inserted whole and go; returns the blocks it had."""
    blocks = pool.allocate(-(-len(ids) // B))
    assert blocks is not None
    tree.insert(ids, len(ids), blocks, snapshots)
    for block in reversed(blocks):
        pool.release(block)
    return blocks


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8)


@pytest.fixture
def tree(pool: BlockPool) -> PrefixTree[str]:
    return PrefixTree(B, pool)


@pytest.mark.parametrize("max_tokens", [-1, 0, 1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 3 * B, 9 * B])
def test_hit_is_the_last_whole_block_within_the_limit(
    tree: PrefixTree[str], pool: BlockPool, max_tokens: int
) -> None:
    ids = list(range(2 * B + 5))
    blocks = put(tree, pool, ids, {B: "one", 2 * B: "two"})
    match = tree.match(ids, max_tokens)
    num_blocks = max(0, min(max_tokens, 2 * B)) // B
    assert match.num_tokens == num_blocks * B
    assert match.blocks == tuple(blocks[:num_blocks])
    assert match.snapshot == (None, "one", "two")[num_blocks]
    assert [pool.refcount(block) for block in match.blocks] == [1] * num_blocks
    stats = tree.stats
    assert stats.hit_tokens == match.num_tokens
    assert stats.lookup_tokens == max(0, min(max_tokens, len(ids)))


@pytest.mark.parametrize("num_tokens", [0, B - 1, B, B + 1, 2 * B - 1, 2 * B])
def test_only_full_blocks_are_adopted(tree: PrefixTree[str], pool: BlockPool, num_tokens: int) -> None:
    blocks = pool.allocate(2)
    assert blocks is not None
    assert tree.insert(range(2 * B), num_tokens, blocks, {}) == num_tokens // B
    assert [pool.is_writable(block) for block in blocks] == [num_tokens < B, num_tokens < 2 * B]


def test_a_prefix_without_a_snapshot_at_its_end_is_cut_to_the_last_one(
    tree: PrefixTree[str], pool: BlockPool
) -> None:
    put(tree, pool, list(range(3 * B)), {B: "one"})
    match = tree.match(range(3 * B), 3 * B)
    assert (match.num_tokens, match.snapshot) == (B, "one")


def test_one_different_id_is_a_miss_and_equal_ids_in_another_container_a_hit(
    tree: PrefixTree[str], pool: BlockPool
) -> None:
    put(tree, pool, list(range(B)), {B: "one"})
    for i in (0, B // 2, B - 1):
        ids = np.arange(B)
        ids[i] += 2**32
        assert tree.match(ids, B).num_tokens == 0
    for same in (range(B), tuple(range(B)), np.arange(B, dtype=np.int32), np.arange(B, dtype=np.uint32)):
        assert tree.match(same, B).num_tokens == B


def test_the_first_of_two_equal_sequences_provides_the_block(tree: PrefixTree[str], pool: BlockPool) -> None:
    first, second = pool.allocate(1), pool.allocate(2)
    assert first is not None
    assert second is not None
    assert tree.insert(range(B), B, first, {}) == 1
    assert tree.insert(range(2 * B), 2 * B, second, {2 * B: "two"}) == 1
    assert pool.is_writable(second[0])
    pool.release(first[0])
    # Nobody holds the first block, but the second sequence's own continuation below it is in use.
    assert (pool.num_cached, pool.num_available) == (1, 5)
    assert pool.allocate(6) is None
    assert pool.evict(8) == 0
    for block in second:
        pool.release(block)
    assert tree.match(range(2 * B), 2 * B).blocks == (first[0], second[1])


def test_leaves_go_first_then_the_oldest_use_then_the_deepest(tree: PrefixTree[str], pool: BlockPool) -> None:
    old = put(tree, pool, list(range(3 * B)), {3 * B: "old"})
    fork = [*range(B), *[7] * B]
    new = put(tree, pool, fork, {2 * B: "new"})
    assert new[0] not in old  # released unadopted: free again
    order: list[int] = []
    for _ in range(4):
        free_before = {block for block in [*old, new[1]] if not pool.is_cached(block)}
        assert pool.evict(1) == 1
        order += [b for b in [*old, new[1]] if not pool.is_cached(b) and b not in free_before]
    assert order == [old[2], old[1], new[1], old[0]]
    assert (tree.stats.evictions, tree.stats.num_nodes, tree.stats.num_snapshots) == (4, 0, 0)


def test_a_match_protects_from_eviction_longer_than_a_later_insert(
    tree: PrefixTree[str], pool: BlockPool
) -> None:
    first = put(tree, pool, [1] * B, {B: "first"})
    second = put(tree, pool, [2] * B, {B: "second"})
    pool.release(tree.match([1] * B, B).blocks[0])
    pool.evict(1)
    assert (pool.is_cached(first[0]), pool.is_cached(second[0])) == (True, False)


def test_least_recently_used_snapshots_are_dropped_and_nodes_stay(pool: BlockPool) -> None:
    tree: PrefixTree[str] = PrefixTree(B, pool, max_snapshots=2)
    put(tree, pool, list(range(2 * B)), {B: "one", 2 * B: "two"})
    assert tree.match(range(2 * B), B).snapshot == "one"
    put(tree, pool, [7] * B, {B: "seven"})
    assert tree.match(range(2 * B), 2 * B).snapshot == "one"
    assert (tree.stats.num_nodes, tree.stats.num_snapshots) == (3, 2)


def test_without_room_for_snapshots_nothing_hits(pool: BlockPool) -> None:
    tree: PrefixTree[str] = PrefixTree(B, pool, max_snapshots=0)
    put(tree, pool, list(range(B)), {B: "one"})
    assert (tree.match(range(B), B).num_tokens, tree.stats.num_nodes, tree.stats.num_snapshots) == (0, 1, 0)


def test_trees_of_two_namespaces_share_a_pool_but_no_block(tree: PrefixTree[str], pool: BlockPool) -> None:
    other: PrefixTree[str] = PrefixTree(B, pool)
    put(tree, pool, list(range(B)), {B: "tree"})
    assert other.match(range(B), B).num_tokens == 0
    put(other, pool, list(range(B)), {B: "other"})
    assert pool.evict(1) == 1
    assert (tree.stats.num_nodes, other.stats.num_nodes) == (0, 1)
    assert other.match(range(B), B).snapshot == "other"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tree, blocks: tree.insert(range(B), B + 1, blocks, {}), "num_tokens is 129 of 128"),
        (lambda tree, blocks: tree.insert(range(B), -1, blocks, {}), "num_tokens is -1"),
        (lambda tree, blocks: tree.insert(range(2 * B), 2 * B, blocks[:1], {}), "1 blocks for 2 full"),
        (lambda tree, blocks: tree.insert(range(B), B, blocks, {1: ""}), "snapshot at token 1;"),
        (lambda tree, blocks: tree.insert(range(B), B, blocks, {0: ""}), "snapshot at token 0;"),
        (lambda tree, blocks: tree.insert(range(B), B, blocks, {2 * B: ""}), "snapshot at token 256;"),
        (lambda tree, blocks: tree.insert([0.5] * B, B, blocks, {}), "float64"),
        (lambda tree, blocks: tree.match(np.zeros((B, B), np.int32), B), r"shape \(128, 128\)"),
        (lambda tree, blocks: tree.insert(range(B), B, [5], {}), "block 5 is free"),
        (lambda tree, blocks: tree.insert(range(B), B, [0], {}), "no block 0"),
        (lambda tree, blocks: PrefixTree(0, tree._pool), "block_tokens is 0"),
        (lambda tree, blocks: PrefixTree(B, tree._pool, max_snapshots=-1), "max_snapshots is -1"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(
    tree: PrefixTree[str], pool: BlockPool, call: Callable[[PrefixTree[str], list[int]], Any], message: str
) -> None:
    blocks = pool.allocate(2)
    assert blocks is not None
    before = tree.stats
    with pytest.raises(ValueError, match=message):
        call(tree, blocks)
    assert tree.stats == before
    assert [pool.is_writable(block) for block in blocks] == [True, True]
