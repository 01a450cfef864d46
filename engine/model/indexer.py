"""Index queries and the choice of compressed entries for every query row (model.md sections 4.2 to 4.5)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from deepinfer.engine.batch import Rows
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.tracing import Probe
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import PackedWeight, Rotary


@dataclass
class Selection:
    """What the layers of one pass choose for the layers after them, for the same rows.

    Attributes:
        entries: int32 [T, Ktop] of the latest index source, ascending, -1 after the last.
        blocks: int32 [T, Nb] candidate blocks of the candidate source, or None before it ran.
    """

    entries: torch.Tensor | None = field(default=None)
    blocks: torch.Tensor | None = field(default=None)

    def take(self, rows: torch.Tensor) -> Selection:
        """Only the given rows."""
        return Selection(
            None if self.entries is None else self.entries[rows],
            None if self.blocks is None else self.blocks[rows],
        )


@dataclass(frozen=True)
class Indexer:
    """Query weights of one index source layer."""

    layer: int
    kv_source: int
    ratio: int
    wq_b: PackedWeight
    weights_proj: PackedWeight
    num_heads: int
    head_dim: int
    top: int
    num_blocks: int
    block_size: int
    within_candidates: bool

    @classmethod
    def load(cls, checkpoint: Checkpoint, layer: int, ops: Ops) -> Indexer:
        """Read the query part of ``layers.{layer}.attn.indexer.*``."""
        config = checkpoint.config
        prefix = f"layers.{layer}.attn.indexer"
        kv_source = config.kv_source(layer)
        assert kv_source is not None
        candidate = config.candidate_source_layer_id
        return cls(
            layer=layer,
            kv_source=kv_source,
            ratio=config.compress_ratio(layer),
            wq_b=ops.pack_linear(checkpoint.weight(f"{prefix}.wq_b.weight")),
            weights_proj=ops.pack_linear(checkpoint.weight(f"{prefix}.weights_proj.weight")),
            num_heads=config.index_n_heads,
            head_dim=config.index_head_dim,
            top=config.index_topk,
            num_blocks=config.candidate_topk_blocks if layer == candidate else 0,
            block_size=max(config.candidate_block_size, 1),
            within_candidates=candidate is not None and layer > candidate,
        )

    def queries(
        self, ops: Ops, x: torch.Tensor, qr: torch.Tensor, rotary: Rotary, probe: Probe
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Index queries [T, Hi, Ci] and weights of their heads [T, Hi].

        ``x`` [T, D] is the input of attention, ``qr`` [T, Q] the query latent.
        """
        q = ops.linear(qr, self.wq_b).view(-1, self.num_heads, self.head_dim)
        q = ops.mxfp4_(ops.rotate_(q, rotary.cos, rotary.sin, rotary.positions))
        probe("index_query", self.layer, q)
        w = ops.scale(ops.linear(x, self.weights_proj), (self.head_dim * self.num_heads) ** -0.5)
        return q, w

    def choose(
        self,
        ops: Ops,
        q: torch.Tensor,
        w: torch.Tensor,
        rows: Rows,
        view: StepView,
        selection: Selection,
        probe: Probe,
    ) -> None:
        """Update ``selection`` for the results of ``queries``; the entries of the step must be written."""
        if self.within_candidates and selection.blocks is not None:
            selection.entries = self._choose_within(ops, q, w, rows, view, selection.blocks)
        else:
            selection.entries, blocks = self._choose(ops, q, w, rows, view)
            if self.num_blocks:
                selection.blocks = blocks
                probe("candidate_blocks", self.layer, blocks)
        probe("index_topk", self.layer, selection.entries)

    def _choose(
        self, ops: Ops, q: torch.Tensor, w: torch.Tensor, rows: Rows, view: StepView
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries and candidate blocks among all that a row sees."""
        visible, longest = rows.visible[self.ratio], view.step.groups[self.ratio].longest
        if view.records is not None:
            pages = view.records.keys(self.kv_source, rows)
            return ops.select_records(
                q, w, pages, visible, longest, self.top, self.num_blocks, self.block_size
            )
        keys, base = view.index_keys(self.kv_source, self.ratio), rows.base[self.ratio]
        return ops.index_select(
            q, w, keys, base, visible, longest, self.top, self.num_blocks, self.block_size
        )

    def _choose_within(
        self, ops: Ops, q: torch.Tensor, w: torch.Tensor, rows: Rows, view: StepView, blocks: torch.Tensor
    ) -> torch.Tensor:
        """Entries among those of the candidate blocks."""
        visible = rows.visible[self.ratio]
        if view.records is not None:
            pages = view.records.keys(self.kv_source, rows)
            return ops.select_records_within(q, w, pages, visible, blocks, self.block_size, self.top)
        keys, base = view.index_keys(self.kv_source, self.ratio), rows.base[self.ratio]
        return ops.index_select_within(q, w, keys, base, visible, blocks, self.block_size, self.top)
