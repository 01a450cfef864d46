"""Are these the bits that were locked, and if not, where do they first differ. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from deepinfer.baselines.canonical import Float32Array, Sample
from deepinfer.baselines.fingerprint import describe_moved
from deepinfer.baselines.key import Key


class CheckStatus(StrEnum):
    """What became of one key."""

    SAME = "same"
    DIFFERENT = "different"
    MISSING = "missing"
    ORPHAN = "orphan"
    DAMAGED = "damaged"
    INCONCLUSIVE = "inconclusive"


EXIT_CODES = {
    CheckStatus.SAME: 0,
    CheckStatus.DIFFERENT: 1,
    CheckStatus.MISSING: 3,
    CheckStatus.ORPHAN: 3,
    CheckStatus.DAMAGED: 3,
    CheckStatus.INCONCLUSIVE: 5,
}
"""Exit codes of product.md section 5."""

_WORST_FIRST = (1, 3, 5, 0)


@dataclass(frozen=True, kw_only=True)
class TokenDifference:
    """The first row that is not what was locked.

    Attributes:
        position: row within the sample.
        token_ids: locked and present token id; None where one side has no such row.
        values: locked and present log-probability.
        bits: theirs, as unsigned integers.
        ulp: float32 steps between them; -1 beside a NaN or a hole.
    """

    position: int
    token_ids: tuple[int | None, int | None]
    values: tuple[float | None, float | None]
    bits: tuple[int | None, int | None]
    ulp: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyOutcome:
    """What a check found for one key.

    Attributes:
        key: the key.
        status: its status.
        reason: one line for a person.
        first: the first difference, if there is one.
        num_different: rows that differ.
        num_rows: rows compared.
        max_ulp: largest distance of two log-probabilities.
        moved: provenance fields that moved since the entry was locked, name -> (then, now).
    """

    key: Key
    status: CheckStatus
    reason: str = ""
    first: TokenDifference | None = None
    num_different: int = 0
    num_rows: int = 0
    max_ulp: int = 0
    moved: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """Code of the verdict table."""
        return EXIT_CODES[self.status]

    @property
    def is_same(self) -> bool:
        """Whether every bit is what was locked."""
        return self.status is CheckStatus.SAME


def worst_exit_code(outcomes: Mapping[CheckStatus, int]) -> int:
    """The code that wins over counts of statuses; nothing at all is inconclusive, never green."""
    codes = {EXIT_CODES[status] for status, count in outcomes.items() if count}
    return next((code for code in _WORST_FIRST if code in codes), 5)


def compare_samples(
    key: Key, locked: Sample, present: Sample, moved: Mapping[str, tuple[str | None, str | None]]
) -> KeyOutcome:
    """Compare row by row, as bits."""
    common = min(len(locked), len(present))
    if (
        locked.token_ids.tobytes() == present.token_ids.tobytes()
        and locked.logprobs.tobytes() == present.logprobs.tobytes()
    ):
        return KeyOutcome(key=key, status=CheckStatus.SAME, num_rows=common)
    differs = (locked.token_ids[:common] != present.token_ids[:common]) | (
        locked.bits[:common] != present.bits[:common]
    )
    num_different = int(np.count_nonzero(differs)) + abs(len(locked) - len(present))
    position = int(np.argmax(differs)) if differs.any() else common
    first = _describe_row(locked, present, position)
    max_ulp = int(ulp_distance(locked.logprobs[:common], present.logprobs[:common]).max(initial=0))
    return KeyOutcome(
        key=key,
        status=CheckStatus.DIFFERENT,
        reason=f"{_in_words(first)}; {num_different} of {max(len(locked), len(present))} rows differ, "
        f"at most {max_ulp} ULP; {describe_moved(moved)}",
        first=first,
        num_different=num_different,
        num_rows=common,
        max_ulp=max_ulp,
        moved=moved,
    )


def ulp_distance(left: Float32Array, right: Float32Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[S] int64, float32 steps from one value to the other; 0 only for equal bits, -1 beside a NaN."""

    def place(values: Float32Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        bits = values.view(np.uint32).astype(np.int64)
        magnitude = bits & 0x7FFFFFFF
        return np.asarray(np.where(bits >> 31 == 1, -magnitude - 1, magnitude))

    distance: np.ndarray[tuple[int], np.dtype[np.int64]] = np.abs(place(left) - place(right))
    distance[np.isnan(left) | np.isnan(right)] = -1
    distance[left.view(np.uint32) == right.view(np.uint32)] = 0
    return distance


def _describe_row(locked: Sample, present: Sample, position: int) -> TokenDifference:
    here = slice(position, position + 1)
    sides = (locked, present)
    held = [position < len(side) for side in sides]
    ids = [int(side.token_ids[position]) if has else None for side, has in zip(sides, held, strict=True)]
    values = [float(side.logprobs[position]) if has else None for side, has in zip(sides, held, strict=True)]
    bits = [int(side.bits[position]) if has else None for side, has in zip(sides, held, strict=True)]
    return TokenDifference(
        position=position,
        token_ids=(ids[0], ids[1]),
        values=(values[0], values[1]),
        bits=(bits[0], bits[1]),
        ulp=int(ulp_distance(locked.logprobs[here], present.logprobs[here])[0]) if all(held) else -1,
    )


def _in_words(first: TokenDifference) -> str:
    if first.token_ids[0] != first.token_ids[1]:
        return (
            f"position {first.position}: token {first.token_ids[0]} was locked, {first.token_ids[1]} is here"
        )
    shown = [f"{value!r} ({bits:#010x})" for value, bits in zip(first.values, first.bits, strict=True)]
    return (
        f"position {first.position}, token {first.token_ids[0]}: {shown[0]} was locked, {shown[1]} is here, "
        f"{first.ulp} ULP"
    )
