"""The chains of a kernel set; ``chains`` and ``draft_chains`` say in ops what each stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from deepinfer.kernels.attention_operands import AttentionLayer, Seen
from deepinfer.kernels.draft_operands import BlockShape, DraftHead, DraftOutput, DraftRows, WindowLayer
from deepinfer.kernels.operands import (
    BoundRecords,
    LowRank,
    MoeWeights,
    PackedWeight,
    Rotary,
    SiteInput,
    SiteWeights,
)

T = TypeVar("T")


class ChainOps(Protocol):
    """Part of ``Ops``."""

    def beside(self, work: Callable[[], T], num_rows: int) -> Callable[[], T]:
        """Begin ``work``, ops on steps of ``num_rows`` rows; what comes back gives its result.

        A device may do it beside what is launched before that is asked for. So nobody may change what the
        work reads, or read what it changes, until then.
        """

    def site_input(self, streams: torch.Tensor, pre: torch.Tensor, site: SiteWeights) -> SiteInput:
        """[T, S, D], [T, S] -> mixes of a site and the normalised input [T, D] of its sublayer."""

    def first_streams(
        self, embedding: torch.Tensor, ids: torch.Tensor, num_streams: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 [V, D], int64 [T] -> streams [T, S, D] and ``pre`` [T, S] that a step begins with."""

    def pool_waiting(
        self,
        values: torch.Tensor,
        scores: torch.Tensor,
        kept_values: torch.Tensor,
        kept_scores: torch.Tensor,
        pairs: torch.Tensor,
        places: torch.Tensor,
        halves: torch.Tensor,
    ) -> torch.Tensor:
        """Pairs of rows, some of them halves that waited, pooled; then halves that wait now are kept.

        Args:
            values, scores: float32 [T, C].
            kept_values, kept_scores: float32 [P, C], written; their last row is nobody's.
            pairs: int64 [n, 2], rows, or T plus places of what is kept.
            places: int64 [h], where halves are kept, -1 for nowhere.
            halves: int64 [h], their rows.

        Returns:
            Float32 [n, C].
        """

    def next_site(
        self, streams: torch.Tensor, added: torch.Tensor, site: SiteInput, following: SiteWeights
    ) -> tuple[torch.Tensor, SiteInput]:
        """[T, S, D], [T, D] -> streams behind the sublayer of ``site``, and the input of the next one."""

    def moe_expand(self, streams: torch.Tensor, site: SiteInput, weights: MoeWeights) -> torch.Tensor:
        """[T, S, D] -> streams behind the experts of ``site``."""

    def moe_next_site(
        self, streams: torch.Tensor, site: SiteInput, weights: MoeWeights, following: SiteWeights
    ) -> tuple[torch.Tensor, SiteInput]:
        """[T, S, D] -> streams behind the experts of ``site``, and the input of the next one."""

    def collapsed_norm(
        self, streams: torch.Tensor, pre: torch.Tensor, gain: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, S, D], [T, S] -> streams collapsed [T, D], and their norm [T, D]."""

    def low_rank_query(
        self, x: torch.Tensor, weights: LowRank, num_heads: int, rotary: Rotary
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, D] -> latent [T, Q] and rotated queries [T, H, C]."""

    def rotated_latent(
        self, x: torch.Tensor, weight: PackedWeight, gain: torch.Tensor, eps: float, rotary: Rotary
    ) -> torch.Tensor:
        """[T, D] -> [T, C]: linear, norm, rotation."""

    def window_latent(
        self, x: torch.Tensor, weight: PackedWeight, gain: torch.Tensor, eps: float, rotary: Rotary
    ) -> torch.Tensor:
        """``rotated_latent`` as its cache record gives it back."""

    def attention_output(
        self, mixed: torch.Tensor, rotary: Rotary, wo_a: PackedWeight, wo_b: PackedWeight
    ) -> torch.Tensor:
        """[T, H, C] -> [T, D]: inverse rotation, two linear layers."""

    def attention(
        self,
        x: torch.Tensor,
        layer: AttentionLayer,
        rotary: Rotary,
        seen: Callable[[torch.Tensor], Seen],
    ) -> torch.Tensor:
        """[T, D] -> [T, D]: queries, attention to what ``seen`` gives for their latent [T, Q], output.

        A set that overrides it may rotate queries and results where it attends. ``seen`` may run ops; whoever
        looks at every op takes the chain of ``chains`` for its own.
        """

    def routed_moe(
        self, x: torch.Tensor, weights: MoeWeights
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[T, D] -> [T, D], expert ids [T, k] and their weights [T, k]."""

    def markov_decode(
        self,
        golden: torch.Tensor,
        states: torch.Tensor,
        base_logits: torch.Tensor,
        embed: torch.Tensor,
        head: PackedWeight,
        confidence: PackedWeight,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens [A, 1 + B], logits [A, B, V], confidence logits [A, B] of drafted blocks; see ``chains``."""

    def draft_rows(
        self,
        golden: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        low: torch.Tensor,
        embedding: torch.Tensor,
        shape: BlockShape,
        ring: int,
    ) -> DraftRows:
        """Four int64 [A] -> the rows of blocks that begin with tokens ``golden`` at ``positions``."""

    def window_layers(
        self,
        streams: torch.Tensor,
        pre: torch.Tensor,
        layers: Sequence[WindowLayer],
        rotary: Rotary,
        pools: Sequence[BoundRecords],
        records: torch.Tensor,
        places: torch.Tensor,
        own: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, S, D], [T, S] -> the same behind layers; see ``chains``."""

    def draft_decode(
        self,
        streams: torch.Tensor,
        pre: torch.Tensor,
        golden: torch.Tensor,
        head: DraftHead,
    ) -> DraftOutput:
        """[A * n, S, D], [A * n, S] -> tokens and confidences of blocks of n rows."""

    def draft_block(
        self,
        golden: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        low: torch.Tensor,
        embedding: torch.Tensor,
        shape: BlockShape,
        ring: int,
        rotary: Rotary,
        layers: Sequence[WindowLayer],
        pools: Sequence[BoundRecords],
        head: DraftHead,
    ) -> Callable[[], DraftOutput]:
        """``draft_rows``, ``window_layers`` and ``draft_decode``, to be asked for when they are needed.

        Of ``rotary`` the table alone is read. Nobody may change the pools until the drafts are there.
        """

    def draft_contexts(
        self,
        features: torch.Tensor,
        projection: PackedWeight,
        gain: torch.Tensor,
        eps: float,
        layers: Sequence[WindowLayer],
        rotary: Rotary,
    ) -> tuple[torch.Tensor, ...]:
        """Features [T, F] -> context latents [T, C] of every layer."""

    def keep_contexts(
        self,
        features: torch.Tensor,
        projection: PackedWeight,
        gain: torch.Tensor,
        eps: float,
        layers: Sequence[WindowLayer],
        rotary: Rotary,
        pools: Sequence[BoundRecords],
        records: torch.Tensor,
    ) -> None:
        """``draft_contexts`` into ``records`` int64 [T] of every layer's pool."""
