from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from deepinfer.engine.cache.block_pool import NO_BLOCK, BlockPool
from deepinfer.engine.cache.prefix_tree import Match, PrefixTree

FUZZ = settings(max_examples=70, stateful_step_count=50)
# A control ends at its first failure, and nobody reads its smallest example.
CONTROL = settings(FUZZ, max_examples=500, phases=[Phase.generate])


class ComparesHalfTheIds(PrefixTree[Any]):
    def _keys(self, token_ids: Any, num_full: int) -> list[bytes]:
        return [key[: len(key) // 2] for key in super()._keys(token_ids, num_full)]


class ForgetsThePath(PrefixTree[Any]):
    """Finds a block by its own ids, whatever stands before it."""

    def _find(self, keys: Any) -> list[int]:
        by_key = {key: block for (_, key), block in self._block_at.items()}
        known = [by_key.get(key, NO_BLOCK) for key in keys]
        return known[: known.index(NO_BLOCK)] if NO_BLOCK in known else known


class IgnoresTheLimit(PrefixTree[Any]):
    def match(self, token_ids: Any, max_tokens: int) -> Match[Any]:
        return super().match(token_ids, len(token_ids))


class NeedsNoSnapshot(PrefixTree[Any]):
    def match(self, token_ids: Any, max_tokens: int) -> Match[Any]:
        for block in self._find(self._keys(token_ids, len(token_ids) // self._block_tokens)):
            self._snapshots.setdefault(block, None)
        return super().match(token_ids, max_tokens)


class SharesNothing(PrefixTree[Any]):
    def match(self, token_ids: Any, max_tokens: int) -> Match[Any]:
        match = super().match(token_ids, max_tokens)
        for block in match.blocks:
            self._pool.release(block)
        return match


class RefusesSnapshotsWhenFull(PrefixTree[Any]):
    def _keep_snapshot(self, block: int, snapshot: Any) -> None:
        if len(self._snapshots) != self._max_snapshots:
            super()._keep_snapshot(block, snapshot)


class DropsMatchedSnapshotsFirst(PrefixTree[Any]):
    def match(self, token_ids: Any, max_tokens: int) -> Match[Any]:
        match = super().match(token_ids, max_tokens)
        last = match.blocks[-1:]
        self._snapshots = dict(sorted(self._snapshots.items(), key=lambda item: item[0] not in last))
        return match


class ReplacesKnownBlocks(PrefixTree[Any]):
    def insert(self, token_ids: Any, num_tokens: int, block_ids: Any, snapshots: Any) -> int:
        adopted = super().insert(token_ids, num_tokens, block_ids, snapshots)
        parent = NO_BLOCK
        for key, block in zip(
            self._keys(token_ids, num_tokens // self._block_tokens), block_ids, strict=False
        ):
            parent, self._block_at[parent, key] = self._block_at.get((parent, key), block), block
        return adopted


class KeepsSnapshotsOfEvictedBlocks(PrefixTree[Any]):
    def _forget(self, block: int) -> None:
        snapshot = self._snapshots.get(block)
        super()._forget(block)
        self._snapshots[block] = snapshot


class CountsNoUse(BlockPool):
    def touch(self, blocks: Any) -> None:
        pass


class HandsOutSharedBlocks(BlockPool):
    def share(self, block: int) -> None:
        super().share(block)
        self._free.append(block)


def test_tree_agrees_with_a_simple_model(tree_machine: Any) -> None:
    run_state_machine_as_test(tree_machine, settings=FUZZ)


@pytest.mark.parametrize(
    "fault",
    [
        ComparesHalfTheIds,
        ForgetsThePath,
        IgnoresTheLimit,
        NeedsNoSnapshot,
        SharesNothing,
        RefusesSnapshotsWhenFull,
        DropsMatchedSnapshotsFirst,
        ReplacesKnownBlocks,
        KeepsSnapshotsOfEvictedBlocks,
        CountsNoUse,
        HandsOutSharedBlocks,
    ],
    ids=lambda fault: fault.__name__,
)
def test_model_sees_a_faulty_tree(tree_machine: Any, fault: type) -> None:
    part = "make_pool" if issubclass(fault, BlockPool) else "make_tree"
    faulty = type("FaultyMachine", (tree_machine,), {part: staticmethod(fault)})
    with pytest.raises((AssertionError, KeyError, ValueError)):
        run_state_machine_as_test(faulty, settings=CONTROL)
