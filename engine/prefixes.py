"""What a sequence takes from the cache of prefixes when it is admitted, and what steps leave there."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from deepinfer.engine.api import PrefillMode
from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.cache.caches import Caches
from deepinfer.engine.cache.prefix_tree import PrefixTree
from deepinfer.engine.cache.snapshots import Snapshot
from deepinfer.engine.core_config import CoreConfig
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.engine.step_run import Boundary


@dataclass(frozen=True)
class Prefixes:
    """The tree of known prefixes between admissions and steps.

    Attributes:
        tree: blocks and snapshots by the tokens before their ends.
        caches, rule: of the engine.
        is_on: whether anything is kept.
    """

    tree: PrefixTree[Snapshot]
    caches: Caches
    rule: PrefillRule
    is_on: bool

    @classmethod
    def of(cls, pool: BlockPool, caches: Caches, rule: PrefillRule, config: CoreConfig) -> Prefixes:
        """Nothing is known yet."""
        tree: PrefixTree[Snapshot] = PrefixTree(BLOCK_TOKENS, pool, max_snapshots=config.max_snapshots)
        return cls(tree, caches, rule, config.prefix_caching)

    @property
    def num_layers(self) -> int:
        """Layers whose rings a later prompt resumes from: all, or the encoder's, whose rows are never cut."""
        config = self.caches.config
        if not self.is_on:
            return 0
        return config.num_hidden_layers if self.rule.mode is PrefillMode.OFF else config.decoder_start

    def resume(self, sequence: Sequence) -> None:
        """Start a sequence from the longest cached prefix that its mode allows (product.md section 9)."""
        if not self.is_on or (sequence.sheet is not None and not sequence.num_emitted):
            return  # rows that a hit spares would leave no score
        # the last known token is always computed: its row gives the next one
        limit = sequence.num_tokens - 1
        if self.rule.mode is not PrefillMode.OFF:
            limit = min(limit, self.rule.low(sequence.prompt_length))
        match = self.tree.match(sequence.token_ids, limit)
        if match.snapshot is None:
            return
        match.snapshot.restore(self.caches, sequence.slot, match.num_tokens)
        sequence.blocks = list(match.blocks)
        sequence.num_computed = match.num_tokens
        sequence.draft_from = 0 if match.snapshot.has_drafts else match.num_tokens

    def remember(self, boundaries: Items[Boundary], computed: Mapping[int, int]) -> None:
        """Make the blocks that a step completed findable, with the state at their ends.

        ``computed`` are the valid positions of the sequences that still hold blocks, by ``id``: the end of a
        block among rejected rows is none.
        """
        for found in boundaries:
            sequence, boundary = found.sequence, found.boundary
            if boundary <= computed.get(id(sequence), 0):
                has_context = boundary - self.rule.window >= sequence.draft_from
                rings = {
                    layer: saved.clone() for layer, saved in found.rings.items() if layer >= 0 or has_context
                }
                self.tree.insert(sequence.token_ids, boundary, sequence.blocks, {boundary: Snapshot(rings)})
