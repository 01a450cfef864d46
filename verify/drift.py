"""How far truncated prefill moves the answers of the exact model: figures, never a verdict."""

from __future__ import annotations

import math

import numpy as np

from deepinfer.engine.api import Float32Array, RequestFailure, ScoreResult


class Drift:
    """Differences of the rows that both an exact and a truncated run hold."""

    def __init__(self) -> None:
        """Nothing is measured yet."""
        self._logprob_gaps: list[float] = []
        self._divergences: list[float] = []

    def add(self, exact: ScoreResult | RequestFailure, truncated: ScoreResult | RequestFailure) -> None:
        """Add one sequence; a refused one adds nothing (the check itself reports it)."""
        if isinstance(exact, RequestFailure) or isinstance(truncated, RequestFailure):
            return
        both = exact.valid & truncated.valid
        gaps = exact.logprobs[both].astype(np.float64) - truncated.logprobs[both].astype(np.float64)
        self._logprob_gaps.extend(np.abs(gaps).tolist())
        if exact.logits is not None and truncated.logits is not None:
            self._divergences.extend(kl_divergence(exact.logits[both], truncated.logits[both]))

    def figures(self) -> dict[str, float]:
        """Rows measured, mean and largest |difference| of log-probabilities, and mean KL, in nats."""
        if not self._logprob_gaps:
            return {"drift_num_rows": 0.0}
        figures = {
            "drift_num_rows": float(len(self._logprob_gaps)),
            "drift_mean_abs_logprob": math.fsum(self._logprob_gaps) / len(self._logprob_gaps),
            "drift_max_abs_logprob": max(self._logprob_gaps),
        }
        if self._divergences:
            figures["drift_mean_kl"] = math.fsum(self._divergences) / len(self._divergences)
        return figures

    def describe(self) -> str:
        """The figures in words."""
        figures = self.figures()
        if not self._logprob_gaps:
            return "distance to off not measured"
        return (
            f"off differs by {figures['drift_mean_abs_logprob']:.4f} nats on average, "
            f"{figures['drift_max_abs_logprob']:.3f} at most"
        )


def kl_divergence(left_RV: Float32Array, right_RV: Float32Array) -> list[float]:
    """KL(left || right) of each row of logits, in nats, computed in float64."""
    left_logp = _log_softmax(left_RV)
    right_logp = _log_softmax(right_RV)
    rows: list[float] = (np.exp(left_logp) * (left_logp - right_logp)).sum(axis=1).tolist()
    return rows


def log_sum_exp(logits_RV: Float32Array) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Log of the sum of exponentials of each row, in float64."""
    wide = logits_RV.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0])


def _log_softmax(logits_RV: Float32Array) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.asarray(logits_RV.astype(np.float64) - log_sum_exp(logits_RV)[:, None])
