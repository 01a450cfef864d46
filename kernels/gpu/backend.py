"""The device kernel set: Triton kernels; profile strict gives the bits of the CPU set.

Tensors must lie on the device. Profile fast (``fast_backend``) inherits what only moves or rounds values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from deepinfer.kernels.chains import Chains
from deepinfer.kernels.gpu import (
    attention,
    budget,
    engram,
    experts,
    fake_quant,
    hyper,
    indexer,
    logprobs,
    markov,
    norms,
    pointwise,
    records,
    rope,
    router,
    row_copies,
    sampling,
    words,
)
from deepinfer.kernels.gpu import linear as linears
from deepinfer.kernels.gpu.branches import Branches
from deepinfer.kernels.gpu.experts import PackedExperts
from deepinfer.kernels.gpu.experts import moe as run_experts
from deepinfer.kernels.gpu.linear import PackedLinear
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.step_ops import StepKernels
from deepinfer.kernels.gpu.turn_ops import TurnKernels
from deepinfer.kernels.interface import LoadExpert
from deepinfer.kernels.operands import Mixes, SiteInput, SiteWeights
from deepinfer.kernels.record_chains import RecordChains

T = TypeVar("T")


class GpuOps(TurnKernels, StepKernels, Chains, RecordChains):
    """Implements ``kernels.interface.Ops``; see there for shapes and meaning of every method."""

    name = "triton"
    can_be_recorded = True
    torch_threads = 1  # torch only moves data on the host
    fp64 = True  # whether the chip has it: logarithms have the same bits without

    def __init__(self, bf16: bool, round_caches: bool, device: torch.device) -> None:
        """Bind the profile and the device, which is the CPU in Triton's interpreter."""
        self.bf16, self.round_caches, self.device = bf16, round_caches, device
        self.branches = Branches(device)

    @property
    def packing(self) -> str:
        """See ``Ops``; the profiles have kernels, and so layouts, of their own."""
        return f"{self.name} {'fast' if self.bf16 else 'strict'}"

    def pack_linear(self, weight: torch.Tensor) -> PackedLinear:
        """See ``Ops``."""
        return linears.pack_linear(weight, self.device)

    def pack_experts(self, num_experts: int, load: LoadExpert) -> PackedExperts:
        """See ``Ops``."""
        return experts.pack_experts(num_experts, load, self.device)

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See ``Ops``."""
        return linears.linear(x, weight, self.bf16)

    def linear_fp32(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See ``Ops``."""
        return linears.linear(x, weight, False)

    def rms_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """See ``Ops``."""
        return norms.rms_norm(x, gain, eps, self.bf16)

    def rotate_(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        inverse: bool = False,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return rope.rotate_(x, cos, sin, positions, inverse, self.bf16)

    def mxfp8_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return fake_quant.round_trip_(x, fake_quant.MXFP8) if self.round_caches else x

    def mxfp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return fake_quant.round_trip_(x, fake_quant.MXFP4) if self.round_caches else x

    def fp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return fake_quant.round_trip_(x, fake_quant.FP4_E4M3) if self.round_caches else x

    def bind_records(self, kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> BoundRecords:
        """See ``Ops``."""
        return records.bind_records(kind, width, data, scales)

    def store_records(self, where: BoundRecords, values: torch.Tensor, rows: torch.Tensor) -> None:
        """See ``Ops``."""
        records.store_records(where, values, rows)

    def load_records(
        self, where: BoundRecords, rows: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Ops``."""
        return records.load_records(where, rows, out)

    def copy_rows_(
        self, target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        return row_copies.copy_rows_(target, to, source, rows)

    def beside(self, work: Callable[[], T], num_rows: int) -> Callable[[], T]:
        """See ``Ops``."""
        return self.branches.start(work, num_rows)

    def site_input(self, streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights) -> SiteInput:
        """See ``Ops``; the mixes are of use behind the sublayer, so they are made beside it."""
        mixes = self._mixes(streams, site)
        return SiteInput(self._site_row(streams, pre, site), mixes)

    def _mixes(self, streams: torch.Tensor, site: SiteWeights) -> Callable[[], Mixes]:
        given = (site.fn, site.base, site.scale, site.iterations, site.hc_eps, site.rms_eps)
        return self.beside(lambda: self.hc_mix(streams, *given), len(streams))

    def _site_row(self, streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights) -> torch.Tensor:
        """The input of the sublayer."""
        return self.rms_norm(self.hc_collapse(streams, pre), site.gain, site.rms_eps)

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
        return hyper.hc_mix(streams, fn, base, scale, iterations, hc_eps, rms_eps)

    def hc_collapse(self, streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return hyper.hc_collapse(streams, pre, self.bf16)

    def hc_expand(
        self, streams: torch.Tensor, out: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        return hyper.hc_expand(streams, out, post, comb, self.bf16)

    def pool_pairs(self, values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return pointwise.pool_pairs(values, scores, self.bf16)

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
        return indexer.index_select(q, w, keys, base, counts, longest, top, num_blocks, block_size, self.bf16)

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
        return indexer.index_select_within(q, w, keys, base, counts, blocks, block_size, top, self.bf16)

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
        return attention.sparse_attention(q, window, window_slots, main, main_slots, sink, self.bf16)

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor, num_selected: int, normalise: bool, factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return router.route(logits, bias, num_selected, normalise, factor, self.fp64)

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
        return run_experts(x, expert_ids, weights, experts, shared, limit, self.bf16)

    def engram_gate(
        self, streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``Ops``."""
        return engram.engram_gate(streams, kv, gains, eps, self.bf16)

    def mean_streams(self, streams: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return pointwise.mean_streams(streams, self.bf16)

    def add_fp32(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return a + b  # one IEEE addition per element, the same in every implementation

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """See ``Ops``."""
        return pointwise.scale(x, factor, self.bf16)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return logprobs.log_softmax(logits, self.fp64)

    def token_logprobs(
        self, logits: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return logprobs.token_logprobs(logits, targets, self.fp64)

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
        return sampling.sample(logits, temperature, top_p, top_k, min_p, words, fp64=self.fp64)

    def random_words(
        self, seeds: torch.Tensor, positions: torch.Tensor, sample_indices: torch.Tensor, num_words: int
    ) -> torch.Tensor:
        """See ``Ops``."""
        return words.random_words(seeds, positions, sample_indices, num_words)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return pointwise.sigmoid(x)

    markov_decode = markov.markov_decode
    draft_decode = markov.draft_decode
