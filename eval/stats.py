"""Exact sums and errors that know that the tokens of one document are not independent (evaluation.md 1.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_DOCUMENTS = 8
"""Fewest documents on which a statistical test says anything (product.md section 5)."""

Z_95 = 1.959963984540054
"""Half width of a 95 % interval in standard errors."""


def exact_sum(values: npt.NDArray[np.float32] | npt.NDArray[np.float64]) -> float:
    """The correctly rounded sum of a one-dimensional array, whatever its order or length.

    A running sum in float32 is off by nats after some hundred thousand log-probabilities.
    """
    return math.fsum(values.astype(np.float64).tolist())


@dataclass(frozen=True, kw_only=True)
class ClusteredMean:
    """A mean over tokens, with the standard error that takes documents as the independent draws.

    Attributes:
        mean: total over all tokens divided by their number; not a mean of document means.
        standard_error: None when there is only one document.
        num_documents: documents with at least one token.
        num_tokens: tokens over all documents.
    """

    mean: float
    standard_error: float | None
    num_documents: int
    num_tokens: int

    def interval(self, z: float = Z_95) -> tuple[float, float] | None:
        """``mean - z SE`` and ``mean + z SE``; None without a standard error."""
        if self.standard_error is None:
            return None
        return self.mean - z * self.standard_error, self.mean + z * self.standard_error

    @property
    def z_score(self) -> float | None:
        """Mean in standard errors; infinite when only the error is 0; None without an error."""
        if self.standard_error is None:
            return None
        if self.standard_error == 0.0:
            return math.copysign(math.inf, self.mean) if self.mean else 0.0
        return self.mean / self.standard_error


def clustered_mean(sums: Sequence[float], counts: Sequence[int]) -> ClusteredMean | None:
    """Mean per token and its clustered standard error from one sum and token count a document.

    With m the mean, N tokens, J documents: r_j = sum_j - m count_j and SE = sqrt(J / (J - 1) sum r_j^2) / N.
    For a paired comparison the sums are those of the per-token differences.

    Returns:
        None when no document has a token.
    """
    pairs = [(total, count) for total, count in zip(sums, counts, strict=True) if count]
    num_documents, num_tokens = len(pairs), sum(count for _, count in pairs)
    if not num_tokens:
        return None
    mean = math.fsum(total for total, _ in pairs) / num_tokens
    standard_error = None
    if num_documents > 1:
        squares = math.fsum((total - mean * count) ** 2 for total, count in pairs)
        standard_error = math.sqrt(num_documents / (num_documents - 1) * squares) / num_tokens
    return ClusteredMean(
        mean=mean, standard_error=standard_error, num_documents=num_documents, num_tokens=num_tokens
    )


def bounded_exp(value: float) -> float:
    """``exp(value)``, infinity where a float cannot hold it: a perplexity per word may be that large."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
