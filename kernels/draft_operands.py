"""What the chains of drafting take and give back; continues ``operands``.

Legend: A blocks of B rows, S residual streams, D model width, H heads, C latent width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.kernels.operands import LowRank, MoeWeights, PackedWeight, SiteWeights


@dataclass(frozen=True, eq=False)
class WindowLayer:
    """A layer whose queries see given context and their own block: a draft stage (model.md section 7.2).

    Attributes:
        attn_site, ffn_site: its hyper-connections.
        query: x to queries of all heads.
        num_heads: H.
        latent: packed [C, D].
        latent_gain: float32 [C].
        wo_a, wo_b: output matrices.
        sink: float32 [H].
        eps: of the norms of queries and latents.
        moe: its experts.
    """

    attn_site: SiteWeights
    ffn_site: SiteWeights
    query: LowRank
    num_heads: int
    latent: PackedWeight
    latent_gain: torch.Tensor
    wo_a: PackedWeight
    wo_b: PackedWeight
    sink: torch.Tensor
    eps: float
    moe: MoeWeights


@dataclass(frozen=True)
class DraftHead:
    """From the last stage to tokens (sections 7.3 and 7.4).

    Attributes:
        gain: float32 [D], norm before the head.
        eps: of that norm.
        head: packed [V, D].
        embed: float32 [V, R], the Markov embedding.
        markov, confidence: packed [V, R] and [1, D + R].
    """

    gain: torch.Tensor
    eps: float
    head: PackedWeight
    embed: torch.Tensor
    markov: PackedWeight
    confidence: PackedWeight


@dataclass(frozen=True)
class DraftOutput:
    """Drafts of A anchors, B tokens each.

    Attributes:
        hidden: float32 [A * B, D], the last stage collapsed.
        base_logits: float32 [A, B, V] before the Markov term.
        tokens: int64 [A, 1 + B], golden token first; ties go to the lowest id.
        logits: float32 [A, B, V] with the Markov term.
        confidence_logits: float32 [A, B] before the sigmoid.
        confidences: float32 [A, B], estimated probability that the token is accepted if those before it were.
    """

    hidden: torch.Tensor
    base_logits: torch.Tensor
    tokens: torch.Tensor
    logits: torch.Tensor
    confidence_logits: torch.Tensor
    confidences: torch.Tensor
