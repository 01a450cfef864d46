"""The kernel set of Ascend NPUs. Not run on hardware.

The kernels are those of ``kernels.gpu`` that need nothing of NVIDIA's; launches follow Ascend's own rules.
"""

from __future__ import annotations

from typing import Any

import torch

from deepinfer.kernels.ascend.cache_ops import TILE
from deepinfer.kernels.ascend.row_blocks import Rows, by_rows
from deepinfer.kernels.ascend.token_ops import AscendTokenOps
from deepinfer.kernels.chains import Chains
from deepinfer.kernels.gpu.experts import PackedExperts
from deepinfer.kernels.gpu.launching import ceil_div
from deepinfer.kernels.gpu.linear import PackedLinear
from deepinfer.kernels.record_chains import RecordChains
from deepinfer.kernels.turn_chains import Turns

_GROUP = 16
"""Fewest channels of one scale of a cache record."""


class AscendOps(Turns, AscendTokenOps):
    """Implements ``kernels.interface.Ops``; see there for shapes and meaning of every method."""

    name = "ascend"
    can_be_recorded = False
    # turns and drafted rows in torch and the ops here: their kernels select int64 and build unsigned words
    draft_rows = Chains.draft_rows
    markov_decode = Chains.markov_decode
    first_streams = Chains.first_streams
    window_places = RecordChains.window_places
    pool_waiting = Chains.pool_waiting

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See ``Ops``."""
        return self._linear(x, weight, self.bf16)

    def linear_fp32(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        """See ``Ops``."""
        return self._linear(x, weight, False)

    def _linear(self, x: torch.Tensor, weight: PackedLinear, bf16: bool) -> torch.Tensor:
        num_groups, _, num_outputs = weight.turned.shape
        product = super().linear if bf16 else super().linear_fp32
        rows = self._rows(num_groups * ceil_div(num_outputs, TILE))
        return by_rows(lambda part: (product(part, weight),), rows, x)[0]

    def rms_norm(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """See ``Ops``."""
        norm = super().rms_norm
        return by_rows(lambda part: (norm(part, gain, eps),), self._rows(1), x)[0]

    def rotate_(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        inverse: bool = False,
    ) -> torch.Tensor:
        """See ``Ops``."""
        rotate = super().rotate_

        def part(rows: torch.Tensor, where: torch.Tensor) -> Rows:
            rotate(rows, cos, sin, where, inverse)
            return ()

        by_rows(part, self._rows(x.shape[1]), x, positions)
        return x

    def mxfp8_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return self._round_trip_(x, super().mxfp8_)

    def mxfp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return self._round_trip_(x, super().mxfp4_)

    def fp4_(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        return self._round_trip_(x, super().fp4_)

    def _round_trip_(self, x: torch.Tensor, trip: Any) -> torch.Tensor:
        def part(rows: torch.Tensor) -> Rows:
            trip(rows)
            return ()

        by_rows(part, self._rows(ceil_div(x[:1].numel(), _GROUP)), x)
        return x

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
        mix = super().hc_mix

        def part(rows: torch.Tensor) -> Rows:
            return mix(rows, fn, base, scale, iterations, hc_eps, rms_eps)

        pre, post, comb = by_rows(part, self._rows(ceil_div(fn.turned.shape[2], TILE)), streams)
        return pre, post, comb

    def hc_collapse(self, streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        collapse = super().hc_collapse
        rows = self._rows(ceil_div(streams.shape[2], TILE))
        return by_rows(lambda part, factors: (collapse(part, factors),), rows, streams, pre)[0]

    def hc_expand(
        self, streams: torch.Tensor, out: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
    ) -> torch.Tensor:
        """See ``Ops``."""
        expand = super().hc_expand
        rows = self._rows(streams.shape[1] * ceil_div(streams.shape[2], TILE))
        return by_rows(lambda *parts: (expand(*parts),), rows, streams, out, post, comb)[0]

    def pool_pairs(self, values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        pool = super().pool_pairs
        rows = self._rows(ceil_div(values.shape[2], TILE))
        return by_rows(lambda *parts: (pool(*parts),), rows, values, scores)[0]

    def engram_gate(
        self, streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See ``Ops``."""
        gate = super().engram_gate
        rows = self._rows(streams.shape[1])
        return by_rows(lambda part, own: (gate(part, own, gains, eps),), rows, streams, kv)[0]

    def mean_streams(self, streams: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        mean = super().mean_streams
        return by_rows(lambda part: (mean(part),), self._rows(ceil_div(streams.shape[2], TILE)), streams)[0]

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """See ``Ops``."""
        scaled = super().scale
        rows = self._rows(ceil_div(x[:1].numel(), TILE))
        return by_rows(lambda part: (scaled(part, factor),), rows, x)[0]

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        logistic = super().sigmoid
        rows = self._rows(ceil_div(x[:1].numel(), TILE))
        return by_rows(lambda part: (logistic(part),), rows, x)[0]

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
        run = super().moe
        columns = ceil_div(max(experts.gate.shape[1:]), TILE)
        # a tile holds pairs of one expert: at worst every expert has one that is not full
        rows = self._rows(expert_ids.shape[1] * columns, fixed=experts.gate.shape[0] * columns)

        def part(own: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> Rows:
            return (run(own, ids, shares, experts, shared, limit),)

        return by_rows(part, rows, x, expert_ids, weights)[0]
