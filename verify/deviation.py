"""Measures how far an engine's outputs lie from reference outputs, array by array, against stated bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from deepinfer.engine.api import Float32Array, ScoreResult
from deepinfer.engine.draft_request import DraftResult
from deepinfer.verify.drift import log_sum_exp
from deepinfer.verify.reference_data import ReferenceSequence, Tolerances


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One bound and what was measured against it.

    Attributes:
        array: what was measured, e.g. ``token_logprobs mean``.
        measured: the figure.
        allowed: largest figure that passes.
        num_values: values that went into it.
    """

    array: str
    measured: float
    allowed: float
    num_values: int

    @property
    def passes(self) -> bool:
        """Whether the figure keeps its bound; NaN never does."""
        return self.measured <= self.allowed


def score_deviations(
    reference: ReferenceSequence, result: ScoreResult, tolerances: Tolerances
) -> Iterator[Deviation]:
    """Deviations of log-probabilities, argmax, normalisers and the logits of the last eight rows."""
    arrays = reference.arrays
    logits_SV = next_token_logits(result)
    logprobs = result.logprobs[1:].astype(np.float64)
    gaps = np.abs(logprobs - arrays["token_logprobs"])
    count = gaps.size
    yield Deviation(
        array="token_logprobs mean", measured=_mean(gaps), allowed=tolerances.logprob_mean, num_values=count
    )
    if tolerances.logprob_within is not None:
        yield Deviation(
            array=f"token_logprobs share beyond {tolerances.logprob_within:g}",
            measured=_share(~(gaps <= tolerances.logprob_within)),
            allowed=_rest(tolerances.logprob_share),
            num_values=count,
        )
    yield Deviation(
        array="mean_nll",
        measured=abs(-_mean(logprobs) - reference.mean_nll),
        allowed=tolerances.mean_nll,
        num_values=count,
    )
    argmax_differs = logits_SV.argmax(axis=1) != arrays["argmax"]
    yield Deviation(
        array="argmax share that differs",
        measured=_share(argmax_differs),
        allowed=_rest(tolerances.argmax_share),
        num_values=argmax_differs.size,
    )
    if tolerances.logsumexp_mean is not None:
        yield Deviation(
            array="logsumexp mean",
            measured=_mean(np.abs(log_sum_exp(logits_SV) - arrays["logsumexp"])),
            allowed=tolerances.logsumexp_mean,
            num_values=len(logits_SV),
        )
    if tolerances.logits_max is not None:
        yield from _last_rows(reference, logits_SV, tolerances.logits_max, tolerances.fragile_above)


def draft_deviations(
    reference: ReferenceSequence, draft: DraftResult, tolerances: Tolerances
) -> Iterator[Deviation]:
    """Deviations of draft tokens, draft logits and confidences, block by block."""
    if tolerances.draft_max is None:
        return
    if draft.logits is None or draft.base_logits is None:
        raise ValueError(f"draft {draft.request_id} was asked for without logits")
    arrays = reference.arrays
    for block, anchor in enumerate(arrays["dspark_anchor_positions"].tolist()):
        agrees = draft.tokens[block] == arrays["dspark_tokens"][block]
        everywhere = np.ones(agrees.size - 1, dtype=np.bool_)
        # What follows another token answers another question. The anchor itself is never in doubt.
        judged = np.logical_and.accumulate(agrees)[:-1] if tolerances.draft_follows else everywhere
        clear = arrays["dspark_token_margin"][block] > tolerances.draft_margin
        wrong = ~agrees[1:] & clear & judged
        yield Deviation(
            array=f"dspark_tokens at anchor {anchor}",
            measured=float(wrong.sum() + (not agrees[0])),
            allowed=0.0,
            num_values=agrees.size,
        )
        allowed = tolerances.draft_max + 5 * float(arrays["dspark_sensitivity"][block])
        for name, mine, rows in (
            ("dspark_base_logits", draft.base_logits, everywhere),
            ("dspark_logits", draft.logits, judged),
            ("dspark_confidence_raw", draft.confidence_logits, everywhere),
        ):
            gaps = np.abs(mine[block].astype(np.float64) - arrays[name][block])[rows]
            yield Deviation(
                array=f"{name} at anchor {anchor}",
                measured=float(gaps.max(initial=0.0)),
                allowed=tolerances.confidence_max if name == "dspark_confidence_raw" else allowed,
                num_values=gaps.size,
            )


def next_token_logits(result: ScoreResult) -> Float32Array:
    """[S, V]: row i predicts position i + 1, as references count; needs a result with all logits."""
    if result.logits is None or result.final_logits is None:
        raise ValueError(f"result {result.request_id} was asked for without logits")
    return np.concatenate([result.logits[1:], result.final_logits[None]])


def _last_rows(
    reference: ReferenceSequence, logits_SV: Float32Array, floor: float, fragile_above: float | None
) -> Iterator[Deviation]:
    expected = reference.arrays["logits_last8"]
    num_rows = len(expected)
    sensitivity = reference.arrays["logits_sensitivity"][-num_rows:].astype(np.float64)
    if fragile_above is None:
        bounds = np.full(num_rows, floor + 5 * sensitivity.max())
    else:
        bounds = np.where(sensitivity <= fragile_above, floor, 5 * sensitivity)
    gaps = np.abs(logits_SV[-num_rows:].astype(np.float64) - expected).max(axis=1)
    # The row that comes nearest to breaking its own bound speaks for all; NaN is the worst of all.
    row = int(np.argmax(np.where(np.isnan(gaps), np.inf, gaps / bounds)))
    yield Deviation(
        array=f"logits_last8 at position {len(logits_SV) - num_rows + row}",
        measured=float(gaps[row]),
        allowed=float(bounds[row]),
        num_values=expected.size,
    )


def _mean(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(values.mean())


def _share(flags: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
    return float(np.count_nonzero(flags)) / flags.size


def _rest(share: float) -> float:
    """Largest share that may fail, with room for the rounding of the subtraction only."""
    return 1 - share + 1e-12
