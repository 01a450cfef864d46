"""Which prefixes have their blocks in the pool: a radix tree at block granularity (engine.md section 11.2).

A node is one full block of token ids below the blocks before it, so a path from the root is a prefix. Nodes
are found by the ids themselves, not by a digest of them: no collision can turn into a wrong hit. What a block
holds depends on more than ids, so use one tree per namespace (profile, prefill mode, kept rows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from deepinfer.engine.cache.block_pool import NO_BLOCK, BlockPool

SnapshotT = TypeVar("SnapshotT")
TokenIds = Sequence[int] | npt.NDArray[np.integer]
"""Token ids of one sequence: any sequence of integers, or a one-dimensional integer array."""


@dataclass(frozen=True, kw_only=True)
class Match(Generic[SnapshotT]):
    """A usable prefix; the caller holds each block once and must release it.

    Attributes:
        num_tokens: length of the prefix, a multiple of the block length; 0 is a miss.
        blocks: its blocks in order.
        snapshot: the per-request state at its end; ``None`` on a miss.
    """

    num_tokens: int
    blocks: tuple[int, ...]
    snapshot: SnapshotT | None


@dataclass(frozen=True, kw_only=True)
class PrefixTreeStats:
    """State and history of a tree.

    Attributes:
        num_nodes: blocks that the tree knows now.
        num_snapshots: snapshots that it keeps now.
        hit_tokens: tokens that all matches together returned.
        lookup_tokens: tokens that they could have returned at best: the prompt up to ``max_tokens``.
        evictions: nodes lost to the pool's need for blocks.
    """

    num_nodes: int
    num_snapshots: int
    hit_tokens: int
    lookup_tokens: int
    evictions: int


class PrefixTree(Generic[SnapshotT]):
    """Index from token ids to cached blocks of a pool, and to the state needed to go on behind them."""

    def __init__(self, block_tokens: int, pool: BlockPool, *, max_snapshots: int | None = None) -> None:
        """Make an empty tree.

        Args:
            block_tokens: tokens of a block.
            pool: where the blocks live; trees of several namespaces may share one.
            max_snapshots: most snapshots to keep, ``None`` for no limit. The least recently inserted or
                matched goes first (of one insertion, the earliest position); its node stays.
        """
        if block_tokens < 1:
            raise ValueError(f"prefix tree: block_tokens is {block_tokens}; give at least 1")
        if max_snapshots is not None and max_snapshots < 0:
            raise ValueError(f"prefix tree: max_snapshots is {max_snapshots}; give 0 or more, or None")
        self._block_tokens = block_tokens
        self._pool = pool
        self._max_snapshots = max_snapshots
        # The tree: a node is its block, reached by the edge (block of its parent or NO_BLOCK, its ids). The
        # pool
        # never evicts a parent first, so the edges below a block always lead to its own children.
        self._block_at: dict[tuple[int, bytes], int] = {}
        self._edge_to: dict[int, tuple[int, bytes]] = {}
        self._snapshots: dict[int, SnapshotT] = {}  # by block, least recently used first
        self._hit_tokens = 0
        self._lookup_tokens = 0
        self._evictions = 0

    @property
    def stats(self) -> PrefixTreeStats:
        """The figures as of now."""
        return PrefixTreeStats(
            num_nodes=len(self._edge_to),
            num_snapshots=len(self._snapshots),
            hit_tokens=self._hit_tokens,
            lookup_tokens=self._lookup_tokens,
            evictions=self._evictions,
        )

    def match(self, token_ids: TokenIds, max_tokens: int) -> Match[SnapshotT]:
        """Find the longest prefix that can be resumed, and share its blocks for the caller.

        Its length is a multiple of the block length, at most ``max_tokens`` (a value below one block is a
        miss), and a snapshot is kept at its end. The blocks of the prefix count as used now; nodes behind the
        last snapshot do not.
        """
        limit = max(0, min(max_tokens, len(token_ids)))
        path = self._find(self._keys(token_ids, limit // self._block_tokens))
        while path and path[-1] not in self._snapshots:
            path.pop()
        for block in path:
            self._pool.share(block)
        self._pool.touch(path)
        num_tokens = len(path) * self._block_tokens
        self._lookup_tokens += limit
        self._hit_tokens += num_tokens
        snapshot = None
        if path:
            snapshot = self._snapshots[path[-1]] = self._snapshots.pop(path[-1])
        return Match(num_tokens=num_tokens, blocks=tuple(path), snapshot=snapshot)

    def insert(
        self,
        token_ids: TokenIds,
        num_tokens: int,
        block_ids: Sequence[int],
        snapshots: Mapping[int, SnapshotT],
    ) -> int:
        """Make the full blocks of a sequence known, and return how many of the caller's blocks were adopted.

        Where the tree has a block for the same prefix, that block stays and the caller's is left alone. The
        caller remains the holder of every block and releases it as usual; adopted ones are then cached. The
        whole path counts as used now.

        Args:
            token_ids: the sequence.
            num_tokens: how many of its leading tokens are final in the cache; a part of a block is left out.
            block_ids: its blocks in order, held by the caller; may be longer than needed.
            snapshots: state by token position, a multiple of the block length within ``num_tokens``. Where a
                snapshot is kept already, that one stays and counts as used.

        Raises:
            ValueError: a position, length or block does not fit. A block that the pool refuses ends the
                insertion there: what came before it stays inserted.
        """
        if not 0 <= num_tokens <= len(token_ids):
            raise ValueError(
                f"prefix tree: num_tokens is {num_tokens} of {len(token_ids)} tokens; give 0 to all of them"
            )
        num_full = num_tokens // self._block_tokens
        if len(block_ids) < num_full:
            raise ValueError(f"prefix tree: {len(block_ids)} blocks for {num_full} full ones; give them all")
        for position in snapshots:
            if position % self._block_tokens or not 0 < position <= num_tokens:
                raise ValueError(
                    f"prefix tree: snapshot at token {position}; positions are multiples of "
                    f"{self._block_tokens} from there up to {num_tokens}"
                )
        keys = self._keys(token_ids, num_full)
        path = self._find(keys)
        num_known = len(path)
        for key, block in zip(keys[num_known:], block_ids[num_known:num_full], strict=True):
            self._adopt(block, path[-1] if path else NO_BLOCK, key)
            path.append(block)
        self._pool.touch(path)
        for position in sorted(snapshots):
            self._keep_snapshot(path[position // self._block_tokens - 1], snapshots[position])
        return num_full - num_known

    def _keys(self, token_ids: TokenIds, num_full: int) -> list[bytes]:
        """The ids of each of the first full blocks as bytes, in 64 bits so that no two ids look alike."""
        ids = np.asarray(token_ids[: num_full * self._block_tokens])
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise ValueError(f"prefix tree: token ids of type {ids.dtype}, shape {ids.shape}; give integers")
        return [row.tobytes() for row in ids.astype(np.int64).reshape(num_full, self._block_tokens)]

    def _find(self, keys: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known path along the keys."""
        path: list[int] = []
        for key in keys:
            block = self._block_at.get((path[-1] if path else NO_BLOCK, key))
            if block is None:
                break
            path.append(block)
        return path

    def _adopt(self, block: int, parent: int, key: bytes) -> None:
        self._pool.cache(block, parent=parent, on_evict=self._forget)
        self._block_at[parent, key] = block
        self._edge_to[block] = (parent, key)

    def _forget(self, block: int) -> None:
        """The pool evicted this block."""
        del self._block_at[self._edge_to.pop(block)]
        self._snapshots.pop(block, None)
        self._evictions += 1

    def _keep_snapshot(self, block: int, snapshot: SnapshotT) -> None:
        self._snapshots[block] = self._snapshots.pop(block, snapshot)
        if self._max_snapshots is not None and len(self._snapshots) > self._max_snapshots:
            del self._snapshots[next(iter(self._snapshots))]
