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
class BlockShape:
    """How drafted blocks look.

    Attributes:
        size: B, rows of a block.
        window: W, positions before it that its rows see.
        noise_token_id: what stands in all rows but the first.
        num_streams: S.
    """

    size: int
    window: int
    noise_token_id: int
    num_streams: int


@dataclass(frozen=True)
class DraftRows:
    """Rows of A blocks before the first stage, T = A * B.

    Attributes:
        streams, pre: float32 [T, S, D] and [T, S].
        positions: int64 [T].
        records: int64 [A * W], ring records of the contexts, -1 where there is none.
        places: int64 [T, W], which of those a row sees, -1 for none.
        own: int64 [T, B], the rows of its block.
    """

    streams: torch.Tensor
    pre: torch.Tensor
    positions: torch.Tensor
    records: torch.Tensor
    places: torch.Tensor
    own: torch.Tensor


@dataclass(frozen=True, eq=False)
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
