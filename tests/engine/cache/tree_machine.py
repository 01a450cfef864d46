"""Random sequences through a prefix tree and its pool against a model of both; loaded by conftest.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.cache.prefix_tree import PrefixTree

NUM_BLOCKS = 12
BLOCK_TOKENS = 2
Prefix = tuple[int, ...]
# Few long sequences, cut anywhere, so that many share their beginning and equal blocks follow different ones.
STEMS = [(0,) * 9, (0, 0, 0, 1, 0, 0, 0, 1, 1), (0, 0, 0, 0, 1, 1, 0, 0, 0), (1, 1, 0, 0, 0, 0, 0, 0, 1)]
SEQUENCE = st.builds(lambda stem, end: stem[:end], st.sampled_from(STEMS), st.integers(2, 9))
PICK = st.integers(0, 15)


class TreeMachine(RuleBasedStateMachine):
    """Sequences start, become known and end; the model is a flat table of prefixes, searched by brute force.

    What stands in a block is the whole prefix up to its end, as in a real cache: a block shared for the wrong
    sequence, or written while somebody relies on it, shows as a wrong prefix.
    """

    make_pool: Any = BlockPool
    make_tree: Any = PrefixTree

    @initialize(max_snapshots=st.sampled_from([None, 1, 2, 3]))
    def start_empty(self, max_snapshots: int | None) -> None:
        self.pool = type(self).make_pool(NUM_BLOCKS)
        self.tree = type(self).make_tree(BLOCK_TOKENS, self.pool, max_snapshots=max_snapshots)
        self.max_snapshots = max_snapshots
        self.running: list[tuple[Prefix, list[int]]] = []
        self.content: dict[int, Prefix] = {}
        self.nodes: dict[Prefix, int] = {}
        self.last_use: dict[Prefix, int] = {}
        self.snapshots: list[Prefix] = []  # least recently used first
        self.time = self.hit_tokens = self.lookup_tokens = self.evictions = 0

    def num_holders(self, block: int) -> int:
        return sum(blocks.count(block) for _, blocks in self.running)

    def num_free(self) -> int:
        return NUM_BLOCKS - len({*self.nodes.values()}.union(*(blocks for _, blocks in self.running)))

    def evict_in_model(self) -> bool:
        parents = {prefix[:-BLOCK_TOKENS] for prefix in self.nodes}
        leaves = [p for p, block in self.nodes.items() if p not in parents and not self.num_holders(block)]
        if not leaves:
            return False
        victim = min(leaves, key=lambda p: (self.last_use[p], -len(p)))
        del self.nodes[victim], self.last_use[victim]
        self.snapshots = [p for p in self.snapshots if p != victim]
        self.evictions += 1
        return True

    def use_in_model(self, path: list[Prefix]) -> None:
        self.time += 1
        self.last_use.update(dict.fromkeys(path, self.time))

    def match(self, sequence: Prefix, max_tokens: int) -> list[int]:
        limit = max(0, min(len(sequence), max_tokens))
        path = [sequence[:end] for end in range(BLOCK_TOKENS, limit + 1, BLOCK_TOKENS)]
        while path and not (set(path) <= set(self.nodes) and path[-1] in self.snapshots):
            path.pop()
        match = self.tree.match(np.array(sequence, np.int32), max_tokens)
        assert match.num_tokens == len(path) * BLOCK_TOKENS <= limit
        assert list(match.blocks) == [self.nodes[prefix] for prefix in path]
        assert [self.content[block] for block in match.blocks] == path
        assert match.snapshot == (("state", path[-1]) if path else None)
        self.use_in_model(path)
        self.snapshots.sort(key=lambda prefix: prefix in path[-1:])
        self.hit_tokens += match.num_tokens
        self.lookup_tokens += limit
        return list(match.blocks)

    @rule(sequence=SEQUENCE, num_replayed=st.integers(-1, 4))
    def start(self, sequence: Prefix, num_replayed: int) -> None:
        blocks = self.match(sequence, len(sequence) - num_replayed)
        self.running.append((sequence, blocks))
        count = -(-len(sequence) // BLOCK_TOKENS) - len(blocks)
        before = (dict(self.nodes), dict(self.last_use), self.snapshots, self.evictions)
        possible = True
        while possible and self.num_free() < count:
            possible = self.evict_in_model()
        got = self.pool.allocate(count)
        assert (got is not None) == possible
        if got is None:
            self.nodes, self.last_use, self.snapshots, self.evictions = before
            self.end(-1, last_block_first=True)
            return
        for block in got:
            assert self.pool.is_writable(block)
            assert block not in self.nodes.values()
            assert self.num_holders(block) == 0
            blocks.append(block)
            self.content[block] = sequence[: len(blocks) * BLOCK_TOKENS]

    @precondition(lambda self: self.running)
    @rule(pick=PICK, num_missing=st.integers(0, 4), picks=st.sets(PICK, min_size=1, max_size=3))
    def insert(self, pick: int, num_missing: int, picks: set[int]) -> None:
        sequence, blocks = self.running[pick % len(self.running)]
        num_tokens = max(0, len(sequence) - num_missing)
        path = [sequence[:end] for end in range(BLOCK_TOKENS, num_tokens + 1, BLOCK_TOKENS)]
        kept = sorted({path[p % len(path)] for p in picks}, key=len) if path else []
        given = {len(prefix): ("state", prefix) for prefix in kept}
        new = [prefix for prefix in path if prefix not in self.nodes]
        assert self.tree.insert(list(sequence), num_tokens, blocks, given) == len(new)
        for prefix in new:
            self.nodes[prefix] = blocks[len(prefix) // BLOCK_TOKENS - 1]
        self.use_in_model(path)
        for prefix in kept:
            self.snapshots = [p for p in self.snapshots if p != prefix] + [prefix]
            if self.max_snapshots is not None:
                self.snapshots = self.snapshots[max(0, len(self.snapshots) - self.max_snapshots) :]

    @precondition(lambda self: self.running)
    @rule(pick=PICK, last_block_first=st.booleans())
    def end(self, pick: int, last_block_first: bool) -> None:
        _, blocks = self.running.pop(pick % len(self.running))
        for block in reversed(blocks) if last_block_first else blocks:
            self.pool.release(block)

    @rule(sequence=SEQUENCE, picks=st.sets(PICK, max_size=3))
    def run_to_the_end(self, sequence: Prefix, picks: set[int]) -> None:
        """The common life of a sequence in one go, so that short runs meet full caches."""
        num_running = len(self.running)
        self.start(sequence, num_replayed=0)
        if len(self.running) > num_running:
            self.insert(num_running, num_missing=0, picks=picks)
            self.end(num_running, last_block_first=True)

    @rule()
    def evict(self) -> None:
        assert self.pool.evict(1) == self.evict_in_model()

    @invariant()
    def tree_and_pool_agree_with_the_model(self) -> None:
        for block in range(1, NUM_BLOCKS + 1):
            assert self.pool.refcount(block) == self.num_holders(block)
            assert self.pool.is_cached(block) == (block in self.nodes.values())
        for prefix, block in self.nodes.items():
            assert self.content[block] == prefix
        stats = self.tree.stats
        assert (stats.num_nodes, stats.num_snapshots) == (len(self.nodes), len(self.snapshots))
        assert (stats.hit_tokens, stats.lookup_tokens) == (self.hit_tokens, self.lookup_tokens)
        assert stats.evictions == self.evictions
        assert self.pool.num_free == self.num_free()

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        while self.running:
            self.end(0, last_block_first=True)
        assert self.pool.num_used == 0
        assert self.pool.evict(NUM_BLOCKS) == len(self.nodes)
        assert self.pool.num_free == NUM_BLOCKS
        assert (self.tree.stats.num_nodes, self.tree.stats.num_snapshots) == (0, 0)
