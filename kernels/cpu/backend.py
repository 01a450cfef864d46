"""The CPU kernel set: numba kernels with one order per sum, for any vector width and number of threads."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from deepinfer.kernels import row_copies
from deepinfer.kernels.chains import SiteChains, beside, window_latent
from deepinfer.kernels.chains import attention as attention_chain
from deepinfer.kernels.cpu import (
    attention,
    budget,
    chains,
    compress,
    engram,
    fake_quant,
    hyper,
    indexer,
    logprobs,
    norms,
    pointwise,
    records,
    rope,
    router,
    sampling,
)
from deepinfer.kernels.cpu import linear as linears
from deepinfer.kernels.cpu.bound_layer import BoundLayers
from deepinfer.kernels.cpu.draft_block import DraftBlocks
from deepinfer.kernels.cpu.experts import moe as run_experts
from deepinfer.kernels.cpu.linear import PackedLinear
from deepinfer.kernels.cpu.packed_experts import PackedExperts, pack_experts
from deepinfer.kernels.cpu.records import BoundRecords
from deepinfer.kernels.cpu.workers import Workers
from deepinfer.kernels.interface import LoadExpert
from deepinfer.kernels.operands import LowRank, MoeWeights, Rotary, SiteInput, SiteWeights
from deepinfer.kernels.record_chains import RecordChains
from deepinfer.kernels.rng import host_words
from deepinfer.kernels.turn_chains import Turns


class CpuOps(DraftBlocks, SiteChains, RecordChains, Turns):
    """Implements ``kernels.interface.Ops``; see there for shapes and meaning of every method."""

    name = packing = "cpu"
    device = torch.device("cpu")
    can_be_recorded = True
    torch_threads = 1

    def __init__(self, bf16: bool, round_caches: bool, num_threads: int) -> None:
        """Bind the profile and a team of threads; bits do not depend on the team."""
        self.bf16, self.round_caches = bf16, round_caches
        self.workers = Workers(num_threads)
        self.layers, self.heads = BoundLayers(), WeakKeyDictionary()

    def pack_linear(self, weight: torch.Tensor) -> PackedLinear:
        """See ``Ops``."""
        return linears.pack_linear(weight)

    def pack_experts(self, num_experts: int, load: LoadExpert) -> PackedExperts:
        """See ``Ops``."""
        return pack_experts(num_experts, load)

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See ``Ops``."""
        return linears.linear(x, weight, self.bf16, self.workers)

    def linear_fp32(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See ``Ops``."""
        return linears.linear(x, weight, False, self.workers)

    def rms_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """See ``Ops``."""
        return norms.rms_norm(x, gain, eps, self.bf16, self.workers)

    def rotate_(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        inverse: bool = False,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return rope.rotate_(x, cos, sin, positions, inverse, self.bf16, self.workers)

    def mxfp8_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return fake_quant.round_trip_(x, fake_quant.MXFP8, self.workers) if self.round_caches else x

    def mxfp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return fake_quant.round_trip_(x, fake_quant.MXFP4, self.workers) if self.round_caches else x

    def fp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return fake_quant.round_trip_(x, fake_quant.FP4_E4M3, self.workers) if self.round_caches else x

    def bind_records(self, kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> BoundRecords:
        """See ``Ops``."""
        return records.bind_records(kind, width, data, scales)

    def store_records(self, where: BoundRecords, values: torch.Tensor, rows: torch.Tensor) -> None:
        """See ``Ops``."""
        records.store_records(where, values, rows, self.workers)

    def load_records(
        self, where: BoundRecords, rows: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Ops``."""
        return records.load_records(where, rows, out, self.workers)

    def copy_rows_(
        self, target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        return row_copies.copy_rows_(target, to, source, rows)

    def hc_mix(
        self,
        streams: torch.Tensor,
        fn: PackedLinear,
        base: torch.Tensor,
        scale: torch.Tensor,
        iterations: int,
        hc_eps: float,
        rms_eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return hyper.hc_mix(streams, fn, base, scale, iterations, hc_eps, rms_eps, self.workers)

    def hc_collapse(self, streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return hyper.hc_collapse(streams, pre, self.bf16, self.workers)

    def hc_expand(
        self, streams: torch.Tensor, out: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        return hyper.hc_expand(streams, out, post, comb, self.bf16, self.workers)

    def pool_pairs(self, values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return compress.pool_pairs(values, scores, self.bf16, self.workers)

    def index_select(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        keys: torch.Tensor,
        base: torch.Tensor,
        counts: torch.Tensor,
        longest: int,
        top: int,
        num_blocks: int,
        block_size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return indexer.index_select(
            q, w, keys, base, counts, top, num_blocks, block_size, self.bf16, self.workers
        )

    def index_select_within(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        keys: torch.Tensor,
        base: torch.Tensor,
        counts: torch.Tensor,
        blocks: torch.Tensor,
        block_size: int,
        top: int,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return indexer.index_select_within(
            q, w, keys, base, counts, blocks, block_size, top, self.bf16, self.workers
        )

    def sparse_attention(
        self,
        q: torch.Tensor,
        window: torch.Tensor,
        window_slots: torch.Tensor,
        main: torch.Tensor,
        main_slots: torch.Tensor,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return attention.sparse_attention(
            q, window, window_slots, main, main_slots, sink, self.bf16, self.workers
        )

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor, num_selected: int, normalise: bool, factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return router.route(logits, bias, num_selected, normalise, factor, self.workers)

    def moe(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        experts: PackedExperts,
        shared: PackedExperts,
        limit: float,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return run_experts(x, expert_ids, weights, experts, shared, limit, self.bf16, self.workers)

    def engram_gate(
        self, streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``Ops``."""
        return engram.engram_gate(streams, kv, gains, eps, self.bf16, self.workers)

    def mean_streams(self, streams: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return pointwise.mean_streams(streams, self.bf16, self.workers)

    def add_fp32(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return a + b  # one IEEE addition per element, the same in every implementation

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """See ``Ops``."""
        return pointwise.scale(x, factor, self.bf16, self.workers)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return logprobs.log_softmax(logits, self.workers)

    def token_logprobs(
        self, logits: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return logprobs.token_logprobs(logits, targets, self.workers)

    def verify_budget(self, confidences: torch.Tensor, caps: torch.Tensor, total: int) -> torch.Tensor:
        """See ``Ops``."""
        return budget.verify_budget(confidences, caps, total)

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_p: torch.Tensor,
        top_k: torch.Tensor,
        min_p: torch.Tensor,
        words: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return sampling.sample(logits, temperature, top_p, top_k, min_p, words, self.workers)

    def random_words(
        self, seeds: torch.Tensor, positions: torch.Tensor, sample_indices: torch.Tensor, num_words: int
    ) -> torch.Tensor:
        """See ``Ops``."""
        return host_words(seeds, positions, sample_indices, num_words)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return pointwise.sigmoid(x, self.workers)

    def site_input(self, streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights) -> SiteInput:
        """See ``Ops``."""
        return chains.site_input(streams, pre, site, self.bf16, self.workers)

    def low_rank_query(
        self, x: torch.Tensor, weights: LowRank, num_heads: int, rotary: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return chains.low_rank_query(x, weights, num_heads, rotary, self.bf16, self.workers)

    def rotated_latent(
        self, x: torch.Tensor, weight: PackedLinear, gain: torch.Tensor, eps: float, rotary: Rotary
    ) -> torch.Tensor:
        """See ``Ops``."""
        return chains.rotated_latent(x, weight, gain, eps, rotary, self.bf16, self.workers)

    beside = beside
    window_latent = window_latent
    attention = attention_chain

    def attention_output(
        self, mixed: torch.Tensor, rotary: Rotary, wo_a: PackedLinear, wo_b: PackedLinear
    ) -> torch.Tensor:
        """See ``Ops``."""
        return chains.attention_output(mixed, rotary, wo_a, wo_b, self.bf16, self.workers)

    def routed_moe(
        self, x: torch.Tensor, weights: MoeWeights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return chains.routed_moe(x, weights, self.bf16, self.workers)
