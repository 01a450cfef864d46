"""Perplexity per token, word and byte, and bits per byte, of a document and of a corpus (evaluation.md 1.1).

Every divisor counts what was scored, never what was given: a truncated text counts the bytes of the tokens
that were kept, and tokens that a window policy leaves unscored add neither nats nor bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deepinfer.engine.api import Int32Array
from deepinfer.engine.errors import NonFiniteError
from deepinfer.eval.rows import SampleRows
from deepinfer.eval.stats import ClusteredMean, bounded_exp, clustered_mean, exact_sum
from deepinfer.eval.words import count_words


@dataclass(frozen=True, kw_only=True)
class DocumentFigures:
    """What one document adds to its corpus, under one policy.

    Attributes:
        sample_id: the document's name.
        num_tokens: scored tokens; the begin token is never one.
        nll_sum: nats over them.
        num_bytes: UTF-8 bytes of the original text that the scored tokens spell.
        num_words: words of the text up to the last scored token; None when a token before it was not scored,
            since its words would then be counted without their nats. A word cut by truncation counts.
    """

    sample_id: str
    num_tokens: int
    nll_sum: float
    num_bytes: int
    num_words: int | None


@dataclass(frozen=True, kw_only=True)
class CorpusFigures:
    """One workload under one policy: totals over its documents, never a mean of their perplexities.

    Attributes:
        mean_nll: nats per token with its clustered error; None when nothing was scored.
        nll_sum: nats over all scored tokens.
        num_bytes: bytes of the scored tokens.
        num_words: None as soon as one document has none.
    """

    mean_nll: ClusteredMean | None
    nll_sum: float
    num_bytes: int
    num_words: int | None

    @cached_property
    def token_perplexity(self) -> float | None:
        """exp(S / N)."""
        return bounded_exp(self.mean_nll.mean) if self.mean_nll else None

    @cached_property
    def token_perplexity_error(self) -> float | None:
        """Standard error of the token perplexity by the delta method, PPL times SE."""
        if self.mean_nll is None or self.mean_nll.standard_error is None:
            return None
        return bounded_exp(self.mean_nll.mean) * self.mean_nll.standard_error

    @cached_property
    def word_perplexity(self) -> float | None:
        """exp(S / W); None without words."""
        return bounded_exp(self.nll_sum / self.num_words) if self.num_words else None

    @cached_property
    def byte_perplexity(self) -> float | None:
        """exp(S / B); None without bytes."""
        return bounded_exp(self.nll_sum / self.num_bytes) if self.num_bytes else None

    @cached_property
    def bits_per_byte(self) -> float | None:
        """S / (B ln 2); None without bytes."""
        return self.nll_sum / (self.num_bytes * math.log(2.0)) if self.num_bytes else None


def document_figures(rows: SampleRows, token_bytes: Int32Array, text: str) -> DocumentFigures:
    """Figures of one document.

    Args:
        rows: its rows under one policy.
        token_bytes: [S] int32, bytes of the text that each token spells, 0 for the begin token.
        text: the original, untruncated text.

    Raises:
        NonFiniteError: a scored token has NaN or infinite log-probability; such a document has no perplexity.
    """
    scored = rows.logprob[rows.valid]
    if not np.isfinite(scored).all():
        position = int(np.flatnonzero(rows.valid & ~np.isfinite(rows.logprob))[0])
        raise NonFiniteError(
            f"sample {rows.sample_id!r}, policy {rows.policy}, position {position}: log-probability is "
            f"{rows.logprob[position]}; a perplexity over it means nothing, check the weights"
        )
    return DocumentFigures(
        sample_id=rows.sample_id,
        num_tokens=len(scored),
        nll_sum=-exact_sum(scored) if len(scored) else 0.0,
        num_bytes=int(token_bytes[rows.valid].sum()),
        num_words=_count_scored_words(rows, token_bytes, text),
    )


def corpus_figures(documents: Sequence[DocumentFigures]) -> CorpusFigures:
    """Totals of a corpus; the sum of document sums is exact, so shards in any order give the same bits."""
    words = [document.num_words for document in documents]
    known_words = [count for count in words if count is not None]
    return CorpusFigures(
        mean_nll=clustered_mean([d.nll_sum for d in documents], [d.num_tokens for d in documents]),
        nll_sum=math.fsum(document.nll_sum for document in documents),
        num_bytes=sum(document.num_bytes for document in documents),
        num_words=sum(known_words) if len(known_words) == len(words) else None,
    )


def _count_scored_words(rows: SampleRows, token_bytes: Int32Array, text: str) -> int | None:
    if not rows.valid[1:].all():
        return None
    kept = text.encode("utf-8")[: int(token_bytes.sum())]
    return count_words(kept.decode("utf-8", errors="ignore"))  # ignores a character cut in half at the end
