"""What the chain of attention takes: weights of a sublayer, what its queries see; continues ``operands``.

Legend: T rows, H heads, C latent width, W window slots, K selected entries, P rows of a pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from deepinfer.kernels.operands import BoundRecords, LowRank, PackedWeight, PagedRecords


class AttentionLayer(Protocol):
    """Whatever owns the weights of an attention sublayer."""

    @property
    def query(self) -> LowRank:
        """Input to queries of all heads."""

    @property
    def num_heads(self) -> int:
        """H."""

    @property
    def sink(self) -> torch.Tensor:
        """Float32 [H]."""

    @property
    def wo_a(self) -> PackedWeight:
        """From all heads, in groups; the first output matrix."""

    @property
    def wo_b(self) -> PackedWeight:
        """From there to the model's width."""


@dataclass(frozen=True)
class SeenRows:
    """Decoded rows that T queries attend to, as ``Ops.sparse_attention`` takes them.

    Attributes:
        window, main: float32 [P, C] each.
        window_slots, main_slots: rows of them, [T, W] and [T, K], -1 for none.
    """

    window: torch.Tensor
    window_slots: torch.Tensor
    main: torch.Tensor
    main_slots: torch.Tensor


@dataclass(frozen=True)
class SeenRecords:
    """The same as packed records, as ``Ops.attend_records`` takes them.

    Attributes:
        window: latents.
        window_slots: int32 [T, W], records of it, -1 for none.
        pages: compressed entries.
        entries: int32 [T, K], entries of each row's sequence, -1 for none.
    """

    window: BoundRecords
    window_slots: torch.Tensor
    pages: PagedRecords
    entries: torch.Tensor


Seen = SeenRows | SeenRecords
