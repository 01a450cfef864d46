"""One backbone layer: Engram, attention site, MoE site (model.md section 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from deepinfer.engine.batch import Rows, Step
from deepinfer.engine.cache.step_view import StepView
from deepinfer.engine.checkpoint import Checkpoint
from deepinfer.engine.model.attention import AttentionWeights
from deepinfer.engine.model.compressor import Compressor
from deepinfer.engine.model.engram import EngramLayer, Memory
from deepinfer.engine.model.hyper import HyperSite, Streams
from deepinfer.engine.model.indexer import Indexer, Selection
from deepinfer.engine.model.moe import MoeLayer
from deepinfer.engine.model.rope import RopeTable
from deepinfer.engine.tracing import Probe
from deepinfer.kernels.attention_operands import SeenRecords, SeenRows
from deepinfer.kernels.interface import Ops
from deepinfer.kernels.operands import BoundRecords, Rotary


@dataclass(frozen=True)
class Block:
    """All weights of one backbone layer."""

    layer: int
    ratio: int
    kv_source: int | None
    attn_site: HyperSite
    ffn_site: HyperSite
    attention: AttentionWeights
    compressor: Compressor | None
    indexer: Indexer | None
    engram: EngramLayer | None
    moe: MoeLayer
    eps: float

    @classmethod
    def load(cls, checkpoint: Checkpoint, layer: int, ops: Ops) -> Block:
        """Read ``layers.{layer}.*``."""
        config = checkpoint.config
        prefix = f"layers.{layer}"
        slot = config.engram_slot(layer)
        is_source, has_index = config.is_kv_source(layer), config.is_index_source(layer)
        return cls(
            layer=layer,
            ratio=config.compress_ratio(layer),
            kv_source=config.kv_source(layer),
            attn_site=HyperSite.load(checkpoint, prefix, "attn", ops),
            ffn_site=HyperSite.load(checkpoint, prefix, "ffn", ops),
            attention=AttentionWeights.load(checkpoint, prefix, layer, ops),
            compressor=Compressor.load(checkpoint, layer, ops) if is_source else None,
            indexer=Indexer.load(checkpoint, layer, ops) if has_index else None,
            engram=None if slot is None else EngramLayer.load(checkpoint, layer, slot, ops),
            moe=MoeLayer.load(checkpoint, prefix, config.n_routed_experts, config.num_experts_per_tok, ops),
            eps=config.rms_norm_eps,
        )

    def remember(
        self, ops: Ops, streams: Streams, memories: Callable[[], dict[int, Memory]], probe: Probe
    ) -> Streams:
        """Add the Engram, if the layer has one; ``pre`` stays."""
        if self.engram is None:
            return streams
        return Streams(self.engram.forward(ops, streams.x, memories()[self.layer], probe), streams.pre)

    def compress(
        self, ops: Ops, streams: Streams, step: Step, view: StepView, rope: RopeTable, probe: Probe
    ) -> Callable[[], None]:
        """Write compressed entries of ALL rows of the step; what comes back waits for them.

        The decoder boundary does only this for skipped rows.
        """
        compressor = self.compressor
        if compressor is None:
            return lambda: None

        def write() -> None:
            _, x = ops.collapsed_norm(streams.x, streams.pre, self.attn_site.weights.gain, self.eps)
            compressor.forward(ops, x, step, view, rope, probe)

        return ops.beside(write, len(streams.x))

    def forward(
        self,
        ops: Ops,
        streams: Streams,
        rows: Rows,
        view: StepView,
        rope: RopeTable,
        selection: Selection,
        written: Callable[[], None],
        probe: Probe,
    ) -> Streams:
        """Attention and MoE of ``rows``; ``written`` waits for what ``compress`` does."""
        rotary = rope.at(rows.positions)
        site = self.attn_site.enter(ops, streams, self.layer, probe)
        given = site.x
        probe("attn_in", self.layer, given)

        def choose(latent: torch.Tensor) -> None:
            self._choose(ops, given, latent, rows, view, rotary, selection, written, probe)

        see = self._seen_rows if view.records is None else self._seen_records
        seen = see(ops, given, rows, view, rotary, selection, choose, probe)
        out = ops.attention(given, self.attention, rotary, seen)
        probe("attn_out", self.layer, out)
        x, site = self.ffn_site.follow(ops, streams.x, out, site, self.layer, probe)
        return Streams(self.moe.expand(ops, x, site, self.layer, probe), site.pre)

    def _seen_rows(
        self,
        ops: Ops,
        x: torch.Tensor,
        rows: Rows,
        view: StepView,
        rotary: Rotary,
        selection: Selection,
        choose: Callable[[torch.Tensor], None],
        probe: Probe,
    ) -> Callable[[torch.Tensor], SeenRows]:
        """Begins the window latents of [T, D]; what comes back gives the decoded rows that queries see."""

        def window_of() -> torch.Tensor:
            latents = self.attention.window_latent(ops, x, rotary, probe)
            return view.window(self.layer, latents, rows)

        beside = ops.beside(window_of, len(x))

        def seen(latent: torch.Tensor) -> SeenRows:
            choose(latent)
            window = beside()
            main, main_slots = window, rows.window[:, :0]
            if self.kv_source is not None:
                assert selection.entries is not None
                main, main_slots = view.main_rows(self.kv_source, self.ratio, selection.entries, rows)
            return SeenRows(window, rows.window, main, main_slots)

        return seen

    def _seen_records(
        self,
        ops: Ops,
        x: torch.Tensor,
        rows: Rows,
        view: StepView,
        rotary: Rotary,
        selection: Selection,
        choose: Callable[[torch.Tensor], None],
        probe: Probe,
    ) -> Callable[[torch.Tensor], SeenRecords]:
        """The same of packed records."""
        records = view.records
        assert records is not None
        slots = records.slots(rows)  # worked out here, if it is not yet, for both branches read it

        def window_of() -> BoundRecords:
            latents = self.attention.window_latent(ops, x, rotary, probe)
            return view.window_records(self.layer, latents, rows)

        beside = ops.beside(window_of, len(x))

        def seen(latent: torch.Tensor) -> SeenRecords:
            choose(latent)
            window = beside()
            if self.kv_source is None:
                pages, entries = records.nothing(window, rows)
            else:
                assert selection.entries is not None
                pages, entries = records.entries(self.kv_source, rows), selection.entries
            return SeenRecords(window, slots, pages, entries)

        return seen

    def _choose(
        self,
        ops: Ops,
        x: torch.Tensor,
        latent: torch.Tensor,
        rows: Rows,
        view: StepView,
        rotary: Rotary,
        selection: Selection,
        written: Callable[[], None],
        probe: Probe,
    ) -> None:
        """``selection`` says then what the queries of ``latent`` [T, Q] attend to, which is ``written``."""
        asked = None
        if self.indexer is not None:
            asked = self.indexer.queries(ops, x, latent, rotary, probe)
        written()
        if self.indexer is not None and asked is not None:
            self.indexer.choose(ops, *asked, rows, view, selection, probe)
