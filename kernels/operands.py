"""What chains of ops take and give back, grouped: rotary tables, weights of a site, of a query, of a MoE.

Legend: T rows, S residual streams, D model width, Q query latent, H heads, C latent width, E experts, G
groups of records (cache blocks) of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

PackedWeight = Any
"""Opaque weight of a kernel set, made by its own ``pack_*`` methods."""

Mixes = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""``pre``, ``post`` and ``comb`` of a site."""

BoundRecords = Any
"""Opaque buffers of cache records, made by a kernel set's own ``bind_records``."""


@dataclass(frozen=True)
class PagedRecords:
    """Compressed entries of the sequences of T rows, where the cache keeps them.

    Attributes:
        records: bound by the kernel set.
        table: int32 [T, G], contiguous: the group of the pool that holds entries ``n * per_group ..`` of the
            row's sequence. Groups without a complete entry may be missing or stand for anything.
        per_group: records of a group.
    """

    records: BoundRecords
    table: torch.Tensor
    per_group: int


@dataclass(frozen=True)
class Rotary:
    """Rotary tables float32 [positions, pairs] and the position of every row, int64 [T]."""

    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class SiteWeights:
    """Hyper-connection weights of one site (model.md section 2.2) and the norm of its sublayer.

    Attributes:
        fn: packed [S * S + 2 S, S * D].
        base: float32 [S * S + 2 S].
        scale: float32 [3].
        gain: float32 [D].
        iterations: Sinkhorn iterations.
        hc_eps: added to the coefficients.
        rms_eps: of the mixes' norm and of the sublayer's.
    """

    fn: PackedWeight
    base: torch.Tensor
    scale: torch.Tensor
    gain: torch.Tensor
    iterations: int
    hc_eps: float
    rms_eps: float


@dataclass(frozen=True)
class LowRank:
    """Two linear layers with a norm between them: packed [Q, D], float32 [Q], packed [N, Q]."""

    down: PackedWeight
    gain: torch.Tensor
    up: PackedWeight
    eps: float


@dataclass(frozen=True)
class MoeWeights:
    """One mixture of experts (model.md section 5).

    Attributes:
        gate: packed [E, D].
        bias: float32 [E], for the choice only.
        experts, shared: packed experts.
        num_selected: k experts a token.
        normalise: whether the k weights sum to ``factor``.
        factor: multiplies the weights.
        limit: SwiGLU clamp, 0 for none.
    """

    gate: PackedWeight
    bias: torch.Tensor
    experts: PackedWeight
    shared: PackedWeight
    num_selected: int
    normalise: bool
    factor: float
    limit: float


@dataclass(frozen=True)
class SiteInput:
    """What a site computes before its sublayer, and the mixes of its streams, which are of use behind it.

    Attributes:
        x: float32 [T, D], the normalised input of the sublayer.
        wait: gives the mixes, called when one of them is first asked for: they may be in the making.
    """

    x: torch.Tensor
    wait: Callable[[], Mixes]

    @cached_property
    def _mixes(self) -> Mixes:
        return self.wait()

    @property
    def pre(self) -> torch.Tensor:
        """Float32 [T, S], collapse weights of the NEXT site."""
        return self._mixes[0]

    @property
    def post(self) -> torch.Tensor:
        """Float32 [T, S], the share of the sublayer's output."""
        return self._mixes[1]

    @property
    def comb(self) -> torch.Tensor:
        """Float32 [T, S, S], input stream by output stream."""
        return self._mixes[2]

    def parts(self) -> dict[str, torch.Tensor]:
        """All of it by name, waited for."""
        return {"x": self.x, "pre": self.pre, "post": self.post, "comb": self.comb}

    def of_rows(self, low: int, high: int) -> SiteInput:
        """That of rows ``low .. high``, copied."""
        x, *mixes = (part[low:high].clone() for part in self.parts().values())
        return SiteInput(x, lambda: (mixes[0], mixes[1], mixes[2]))
