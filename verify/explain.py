"""What a failing case looks like from close by: where, by how much, and whether a reader would notice."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.verify.case import Answer, Ask, Case, Trial
from deepinfer.verify.compare import AnyArray, ulp_distance
from deepinfer.verify.drift import kl_divergence
from deepinfer.verify.outcome import Outcome, shared_rows

NEAR_TIE_NATS = 0.01
NUM_TOP = 5


class Flip(StrEnum):
    """What the difference does to the most likely token, over all rows; the worst row decides."""

    NONE = "no flip"
    TIE = "tie flip"
    NEAR_TIE = "near-tie flip"
    CONFIDENT = "confident flip"


@dataclass(frozen=True, kw_only=True)
class Top:
    """A likely token: its id and log-probability in nats."""

    token_id: int
    logprob: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Everything a report says about a failing case.

    Attributes:
        case_id: name that ``deepinfer bisect`` takes.
        sides: both sides in words.
        token_ids, token_hash: the target's ids, and 16 hex digits of their SHA-256.
        array: the array that differs first.
        position: first differing absolute position, None if the array has none.
        coordinates: of the first differing element in its array.
        left_hex, right_hex, left, right, ulp: its values as bits and numbers, representable numbers between.
        mismatch: why the sides cannot be compared element by element, else None.
        max_abs_diff: over the differing elements of that array.
        num_elements, num_differing: elements of that array, and how many differ.
        num_rows, num_differing_rows: logits rows compared, and how many differ.
        kl_left_right, kl_right_left: largest over the differing rows, nats.
        flip: what happens to the most likely token.
        flip_gap: how far the two candidates lie apart where it flips, nats.
        top_left, top_right: most likely tokens at the first differing row.
        boundaries: how the differing rows lie to chunks, blocks, windows and ratios.
        strip: per compared row, ULP distance of its most different element (0 equal, -1 incomparable).
        strip_start: position of the first of them.
        repro: one line that shows it again.
    """

    case_id: str
    sides: str
    token_ids: tuple[int, ...]
    token_hash: str
    array: str
    position: int | None
    coordinates: tuple[int, ...]
    left_hex: str
    right_hex: str
    left: str
    right: str
    ulp: int | None
    mismatch: str | None
    max_abs_diff: float
    num_elements: int
    num_differing: int
    num_rows: int
    num_differing_rows: int
    kl_left_right: float
    kl_right_left: float
    flip: Flip
    flip_gap: float
    top_left: tuple[Top, ...]
    top_right: tuple[Top, ...]
    boundaries: tuple[str, ...]
    strip: tuple[int, ...]
    strip_start: int
    repro: str

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def explain(outcome: Outcome, left: Answer, right: Answer, *, window: int, options: str = "") -> Explanation:
    """Look closely at a case whose sides differ.

    Args:
        outcome: of comparing the two answers.
        left, right: the answers.
        window: the model's sliding window.
        options: what ``deepinfer bisect`` must be told besides the case, e.g. the size.
    """
    case, comparison = outcome.case, outcome.comparison
    first = comparison.first
    one, other = _differing_rows(outcome, left, right)
    flip, gap = classify(one, other)
    return Explanation(
        case_id=case.case_id,
        sides=case.describe(),
        token_ids=case.left.tokens,
        token_hash=case.token_hash,
        array=outcome.array,
        position=outcome.position,
        coordinates=first.coordinates if first else (),
        left_hex=first.left_hex if first else "",
        right_hex=first.right_hex if first else "",
        left=first.left if first else "",
        right=first.right if first else "",
        ulp=first.ulp if first else None,
        mismatch=comparison.mismatch,
        max_abs_diff=comparison.max_abs_diff,
        num_elements=comparison.num_compared,
        num_differing=comparison.num_differing,
        num_rows=outcome.num_rows,
        num_differing_rows=len(outcome.differing),
        kl_left_right=max(kl_divergence(one, other), default=math.nan) if len(one) else math.nan,
        kl_right_left=max(kl_divergence(other, one), default=math.nan) if len(one) else math.nan,
        flip=flip,
        flip_gap=gap,
        top_left=top_tokens(one[0]) if len(one) else (),
        top_right=top_tokens(other[0]) if len(one) else (),
        boundaries=tuple(boundaries(case, outcome, window)),
        strip=_strip(outcome, left, right),
        strip_start=int(outcome.positions[0]) if len(outcome.positions) else 0,
        repro=f"deepinfer bisect {case.case_id}{options}",
    )


def classify(one: AnyArray, other: AnyArray) -> tuple[Flip, float]:
    """What becomes of the most likely token in rows of logits [R, V], and the gap of the widest flip."""
    worst, widest = Flip.NONE, 0.0
    order = list(Flip)
    for left, right in zip(one, other, strict=True):
        here, there = int(left.argmax()), int(right.argmax())
        if here == there:
            continue
        gap = max(float(left[here] - left[there]), float(right[there] - right[here]))
        tie = min(float(left[here] - left[there]), float(right[there] - right[here])) == 0.0
        found = Flip.TIE if tie else Flip.NEAR_TIE if gap <= NEAR_TIE_NATS else Flip.CONFIDENT
        if order.index(found) > order.index(worst):
            worst = found
        widest = max(widest, gap)
    return worst, widest


def top_tokens(row: AnyArray) -> tuple[Top, ...]:
    """The most likely tokens of a logits row [V], ties to the lower id; log-probabilities in float64."""
    wide = row.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = wide - wide.max()
        logprobs = shifted - math.log(float(np.exp(shifted).sum()))
    order = np.argsort(-wide, kind="stable")[:NUM_TOP]
    return tuple(Top(token_id=int(i), logprob=float(logprobs[i])) for i in order)


def boundaries(case: Case, outcome: Outcome, window: int) -> list[str]:
    """How the differing rows lie to every period of the engine; only what chance does not explain."""
    rows = outcome.positions[outcome.differing] - 1  # the row that predicts position p stands at p - 1
    if len(rows) == 0:
        return []
    periods = {"block": BLOCK_TOKENS, "window": window, "ratio-2 group": 2}
    for side, trial in (("left", case.left), ("right", case.right)):
        size = chunk_size(trial)
        if size is not None:
            periods[f"{side} chunk"] = size
    found = []
    for name, period in periods.items():
        if period < 2:
            continue
        for place, wanted in (("first", 0), ("last", period - 1)):
            share = float(np.mean(rows % period == wanted))
            by_chance = len(rows) * math.log2(period) < 4  # less likely than one in sixteen
            if share >= max(0.5, min(0.95, 3 / period)) and not by_chance:
                found.append(
                    f"{share:.0%} of the differing rows are the {place} of a {name} of {period} "
                    f"({1 / period:.1%} expected)"
                )
    if outcome.position is not None and case.right.ask is Ask.GENERATE:
        found.append(f"token {outcome.position - len(case.right.tokens) + 1} of the generated text")
    lead = int(rows[0])
    found.append(
        f"first differing row {lead} = {lead // BLOCK_TOKENS} blocks + {lead % BLOCK_TOKENS}, "
        f"{lead // window} windows + {lead % window}"
    )
    return found


def chunk_size(trial: Trial) -> int | None:
    """Chunk length of a side, if it is set."""
    value = dict(trial.engine).get("max_chunk_tokens")
    return value if isinstance(value, int) else None


def _differing_rows(outcome: Outcome, left: Answer, right: Answer) -> tuple[AnyArray, AnyArray]:
    shared = shared_rows(left, right, exactly=False)
    if isinstance(shared, str) or len(outcome.differing) == 0:
        empty = np.zeros((0, 1), np.float32)
        return empty, empty
    here, there = shared
    return left.logits[here[outcome.differing]], right.logits[there[outcome.differing]]


def _strip(outcome: Outcome, left: Answer, right: Answer) -> tuple[int, ...]:
    shared = shared_rows(left, right, exactly=False)
    if isinstance(shared, str) or outcome.num_rows == 0:
        return ()
    here, there = shared
    distances = ulp_distance(left.logits[here], right.logits[there])
    worst = np.where((distances < 0).any(axis=1), -1, distances.max(axis=1))
    # 0.0 against -0.0 is no distance and yet another byte
    changed = np.zeros(outcome.num_rows, np.bool_)
    changed[outcome.differing] = True
    return tuple(np.where(changed & (worst == 0), 1, worst).tolist())
