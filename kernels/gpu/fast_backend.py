"""The device kernel set in profile fast: the ops that carry the time, on tensor cores and with sums across
lanes.

What only moves or rounds values (rotation, cache records, streams, router, sampling's integers) is
inherited: it is the same in both profiles. A row's bits depend on nothing but the row, as in profile
strict; they are the chip's own and differ from the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from deepinfer.kernels.attention_operands import AttentionLayer, Seen
from deepinfer.kernels.gpu import (
    fast_experts,
    fast_linear,
    hyper,
    latents,
    pool_attention,
    record_ops,
    rope,
    row_sums,
    sampling,
    turned_attention,
    two_level,
)
from deepinfer.kernels.gpu.fast_experts import AnyExperts
from deepinfer.kernels.gpu.fast_linear import AnyLinear, FastLinear
from deepinfer.kernels.gpu.fast_sublayers import FastSublayers
from deepinfer.kernels.gpu.pool_index import Keys
from deepinfer.kernels.gpu.records import BoundRecords
from deepinfer.kernels.gpu.row_sources import floats
from deepinfer.kernels.interface import LoadExpert
from deepinfer.kernels.operands import PagedRecords, Rotary


class FastGpuOps(FastSublayers):
    """Implements ``kernels.interface.Ops`` with activations rounded to bfloat16."""

    reads_records = True

    def pack_linear(self, weight: torch.Tensor) -> AnyLinear:  # type: ignore[override]
        """See ``Ops``."""
        return fast_linear.pack_linear(weight, self.device)

    def pack_experts(self, num_experts: int, load: LoadExpert) -> AnyExperts:  # type: ignore[override]
        """See ``Ops``."""
        return fast_experts.pack_experts(num_experts, load, self.device)

    def linear(self, x: torch.Tensor, weight: AnyLinear) -> torch.Tensor:  # type: ignore[override]
        """See ``Ops``."""
        return fast_linear.linear(x, weight, self._workspace, True)

    def linear_fp32(self, x: torch.Tensor, weight: AnyLinear) -> torch.Tensor:  # type: ignore[override]
        """See ``Ops``."""
        return fast_linear.linear(x, weight, self._workspace, False)

    def rms_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """See ``Ops``."""
        return row_sums.rms_norm(x, gain, eps, True)

    def rotated_latent(
        self, x: torch.Tensor, weight: AnyLinear, gain: torch.Tensor, eps: float, rotary: Rotary
    ) -> torch.Tensor:
        """See ``Ops``."""
        return self._latent(x, weight, gain, eps, rotary, False)

    def window_latent(
        self, x: torch.Tensor, weight: AnyLinear, gain: torch.Tensor, eps: float, rotary: Rotary
    ) -> torch.Tensor:
        """See ``Ops``."""
        return self._latent(x, weight, gain, eps, rotary, self.round_caches)

    def _latent(
        self,
        x: torch.Tensor,
        weight: AnyLinear,
        gain: torch.Tensor,
        eps: float,
        rotary: Rotary,
        mxfp8: bool,
    ) -> torch.Tensor:
        product = self.linear(x, weight)
        if latents.fits(product.shape[1]):
            return latents.latent(product, gain, eps, rotary, mxfp8)
        found = self.rms_norm(product, gain, eps)
        self.rotate_(found[:, None], rotary.cos, rotary.sin, rotary.positions)
        return self.mxfp8_(found) if mxfp8 else found

    def attention_output(
        self, mixed: torch.Tensor, rotary: Rotary, wo_a: AnyLinear, wo_b: AnyLinear
    ) -> torch.Tensor:
        """See ``Ops``."""
        turned = rope.rotated(mixed, rotary.cos, rotary.sin, rotary.positions, True, True)
        return self.linear(self.linear(turned.flatten(1), wo_a), wo_b)

    def attention(
        self,
        x: torch.Tensor,
        layer: AttentionLayer,
        rotary: Rotary,
        seen: Callable[[torch.Tensor], Seen],
    ) -> torch.Tensor:
        """See ``Ops``; rotations are within the launch that attends, where it can do them."""
        query = layer.query
        latent = self.rms_norm(self.linear(x, query.down), query.gain, query.eps)
        q = self.linear(latent, query.up).view(len(x), layer.num_heads, -1)
        mixed = turned_attention.attend(q, seen(latent), layer.sink, rotary, self._workspace)
        return self.linear(self.linear(mixed.flatten(1), layer.wo_a), layer.wo_b)

    def hc_mix(  # type: ignore[override]
        self,
        streams: torch.Tensor,
        fn: AnyLinear,
        base: torch.Tensor,
        scale: torch.Tensor,
        iterations: int,
        hc_eps: float,
        rms_eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        flat = streams.flatten(1).contiguous()
        if isinstance(fn, FastLinear) and fn.num_parts == 3:
            parts = fast_linear.part_products(flat, fn, self._workspace)
            products, squares = row_sums.site_sums(flat, parts)
        else:
            products, squares = self.linear_fp32(flat, fn), row_sums.square_sums(flat)
        return hyper.mix(flat, products, squares, base, scale, iterations, hc_eps, rms_eps)

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
        decoded = Keys(floats(keys), base)
        return two_level.index_select(q, w, decoded, counts, longest, top, num_blocks, block_size)

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
        decoded = Keys(floats(keys), base)
        return two_level.index_select_within(q, w, decoded, counts, blocks, block_size, top)

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
        return pool_attention.sparse_attention(q, window, window_slots, main, main_slots, sink)

    def select_records(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        pages: PagedRecords,
        counts: torch.Tensor,
        longest: int,
        top: int,
        num_blocks: int,
        block_size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return record_ops.select(q, w, pages, counts, longest, top, num_blocks, block_size)

    def select_records_within(
        self,
        q: torch.Tensor,
        w: torch.Tensor,
        pages: PagedRecords,
        counts: torch.Tensor,
        blocks: torch.Tensor,
        block_size: int,
        top: int,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return record_ops.select_within(q, w, pages, counts, blocks, block_size, top)

    def attend_records(
        self,
        q: torch.Tensor,
        window: BoundRecords,
        window_slots: torch.Tensor,
        pages: PagedRecords,
        entries: torch.Tensor,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return record_ops.attend(q, window, window_slots, pages, entries, sink, self._workspace)

    def engram_gate(
        self, streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``Ops``."""
        return row_sums.engram_gate(streams, kv, gains, eps, True)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return row_sums.log_softmax(logits)

    def token_logprobs(
        self, logits: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return row_sums.token_logprobs(logits, targets)

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
        return sampling.sample(logits, temperature, top_p, top_k, min_p, words, row_sums.mass_sums)
