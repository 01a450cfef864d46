"""The reference kernel set: plain torch, readable, float32. It defines what an op means, within rounding.

It promises no bits: torch chooses the order of its sums by shape and thread. It checks the other kernel sets,
and is what their speed is compared with.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from deepinfer.kernels import row_copies
from deepinfer.kernels.chains import Chains
from deepinfer.kernels.interface import LoadExpert
from deepinfer.kernels.record_chains import RecordChains
from deepinfer.kernels.reference import budget, fake_quant, hyper, indexer, records, sampling
from deepinfer.kernels.reference import experts as expert_ops
from deepinfer.kernels.reference.attention import attention
from deepinfer.kernels.reference.rounding import to_bf16
from deepinfer.kernels.rng import host_words
from deepinfer.kernels.turn_chains import Turns


class ReferenceOps(Chains, RecordChains, Turns):
    """Implements ``kernels.interface.Ops``; see there for shapes and meaning of every method."""

    name = packing = "reference"
    device = torch.device("cpu")
    can_be_recorded = False

    def __init__(self, bf16: bool, round_caches: bool, torch_threads: int) -> None:
        """Bind the profile; the caller sets the number of torch's threads, which may move the last bits."""
        self.bf16, self.round_caches, self.torch_threads = bf16, round_caches, torch_threads

    def _round(self, x: torch.Tensor) -> torch.Tensor:
        return to_bf16(x, self.bf16)

    def pack_linear(self, weight: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return weight.to(torch.float32)

    def pack_experts(self, num_experts: int, load: LoadExpert) -> list[expert_ops.Expert]:
        """See ``Ops``."""
        return [load(e) for e in range(num_experts)]

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return self._round(self.linear_fp32(x, weight))

    def linear_fp32(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        if weight.ndim == 2:
            return functional.linear(x, weight)
        grouped = x.view(x.shape[0], weight.shape[0], weight.shape[2])
        return torch.einsum("tgk,gnk->tgn", grouped, weight).reshape(x.shape[0], -1)

    def rms_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """See ``Ops``."""
        return self._round((x * hyper.inverse_rms(x, eps)).mul_(gain))

    def rotate_(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        inverse: bool = False,
    ) -> torch.Tensor:
        """See ``Ops``."""
        num_pairs = cos.shape[1]
        tail = x[..., x.shape[-1] - 2 * num_pairs :].view(*x.shape[:-1], num_pairs, 2)
        sines = -sin[positions] if inverse else sin[positions]
        torch.view_as_complex(tail).mul_(torch.complex(cos[positions], sines)[:, None])
        if self.bf16:
            tail.copy_(self._round(tail))
        return x

    def mxfp8_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return x.copy_(fake_quant.mxfp8(x)) if self.round_caches else x

    def mxfp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return x.copy_(fake_quant.mxfp4(x)) if self.round_caches else x

    def fp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return x.copy_(fake_quant.fp4_e4m3(x)) if self.round_caches else x

    def bind_records(
        self, kind: str, width: int, data: torch.Tensor, scales: torch.Tensor
    ) -> records.Records:
        """See ``Ops``."""
        return records.Records(kind, width, data, scales)

    def store_records(self, where: records.Records, values: torch.Tensor, rows: torch.Tensor) -> None:
        """See ``Ops``."""
        records.store(where, values, rows)

    def load_records(
        self, where: records.Records, rows: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Ops``."""
        return records.load(where, rows, out)

    def copy_rows_(
        self, target: torch.Tensor, to: torch.Tensor, source: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        return row_copies.copy_rows_(target, to, source, rows)

    def hc_mix(
        self,
        streams: torch.Tensor,
        fn: torch.Tensor,
        base: torch.Tensor,
        scale: torch.Tensor,
        iterations: int,
        hc_eps: float,
        rms_eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return hyper.mix(streams, fn, base, scale, iterations, hc_eps, rms_eps)

    def hc_collapse(self, streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return self._round(hyper.collapse(streams, pre))

    def hc_expand(
        self, streams: torch.Tensor, out: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        return self._round(hyper.expand(streams, out, post, comb))

    def pool_pairs(self, values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return self._round((scores.softmax(1) * values).sum(1))

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
        return indexer.index_select(q, w, keys, base, counts, top, num_blocks, block_size, self.bf16)

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
        return self._round(attention(q, window, window_slots, main, main_slots, sink, self.bf16))

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor, num_selected: int, normalise: bool, factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        return expert_ops.route(logits, bias, num_selected, normalise, factor)

    def moe(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        experts: list[expert_ops.Expert],
        shared: list[expert_ops.Expert],
        limit: float,
    ) -> torch.Tensor:
        """See ``Ops``."""
        return self._round(expert_ops.moe(x, expert_ids, weights, experts, shared, limit, self.bf16))

    def engram_gate(
        self, streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``Ops``."""
        num_rows, num_streams, width = streams.shape
        keys = kv[:, : num_streams * width].view(num_rows, num_streams, width)
        value = kv[:, None, num_streams * width :]
        dot = (streams * gains).mul_(keys).sum(-1, keepdim=True)
        score = dot * hyper.inverse_rms(streams, eps) * hyper.inverse_rms(keys, eps) * width**-0.5
        gate = torch.sigmoid(torch.copysign(score.abs().clamp(min=1e-6).sqrt(), score))
        return self._round(torch.addcmul(streams, gate, value))

    def mean_streams(self, streams: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return self._round(streams.sum(1) * (1.0 / streams.shape[1]))

    def add_fp32(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return a + b

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """See ``Ops``."""
        return self._round(x * factor)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return logits.log_softmax(-1)

    def token_logprobs(
        self, logits: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        index = targets[:, None]
        own = logits.gather(1, index)
        tied_below = (logits == own).logical_and_(torch.arange(logits.shape[1]) < index)
        ranks = (logits > own).logical_or_(tied_below).sum(1, dtype=torch.int32)
        return logits.log_softmax(-1).gather(1, index)[:, 0], ranks

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
        return sampling.sample(logits, temperature, top_p, top_k, min_p, words)

    def random_words(
        self, seeds: torch.Tensor, positions: torch.Tensor, sample_indices: torch.Tensor, num_words: int
    ) -> torch.Tensor:
        """See ``Ops``."""
        return host_words(seeds, positions, sample_indices, num_words)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return torch.sigmoid(x)
