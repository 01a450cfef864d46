"""What came of the drafts: acceptance by place, rows wasted, and how far confidences can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from deepinfer.engine.api import Float32Array
from deepinfer.engine.step_plan import Int64

NUM_BINS = 10


@dataclass
class DraftStats:
    """Counters since the start; arrays have one place per draft of a block.

    Attributes:
        block_size: B.
        num_answers: decode steps of sequences.
        num_tokens: tokens that they gave.
        num_verified: int64 [B], drafts that had a row.
        num_reached: int64 [B], those whose predecessors were all accepted.
        num_accepted: int64 [B], those that were accepted themselves.
        bin_count, bin_accepted: int64 [NUM_BINS], reached drafts by confidence, and how many were accepted.
        bin_confidence: float64 [NUM_BINS], sum of their confidences.
    """

    block_size: int
    num_answers: int = 0
    num_tokens: int = 0
    num_verified: Int64 = field(init=False)
    num_reached: Int64 = field(init=False)
    num_accepted: Int64 = field(init=False)
    bin_count: Int64 = field(init=False)
    bin_accepted: Int64 = field(init=False)
    bin_confidence: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """All zero."""
        self.num_verified, self.num_reached, self.num_accepted = np.zeros((3, self.block_size), np.int64)
        self.bin_count, self.bin_accepted = np.zeros((2, NUM_BINS), np.int64)
        self.bin_confidence = np.zeros(NUM_BINS)

    def count(self, verified: Int64, confidences: Float32Array) -> None:
        """Decode steps of sequences with drafts.

        Args:
            verified: int64 [n, 2], drafted rows of each, and how many were accepted.
            confidences: float32 [n, B] of these drafts.
        """
        num_drafts, num_accepted = verified.T
        place = np.arange(self.block_size)
        is_reached = place < np.minimum(num_accepted + 1, num_drafts)[:, None]
        is_accepted = place < num_accepted[:, None]
        self.num_answers += len(verified)
        self.num_tokens += len(verified) + int(num_accepted.sum())
        self.num_verified += (place < num_drafts[:, None]).sum(0)
        self.num_accepted += is_accepted.sum(0)
        self.num_reached += is_reached.sum(0)
        sure = confidences[is_reached].astype(np.float64)
        bins = np.minimum((sure * NUM_BINS).astype(np.int64), NUM_BINS - 1)
        self.bin_count += np.bincount(bins, minlength=NUM_BINS)
        self.bin_accepted += np.bincount(bins[is_accepted[is_reached]], minlength=NUM_BINS)
        self.bin_confidence += np.bincount(bins, sure, NUM_BINS)

    def count_plain(self, num_answers: int) -> None:
        """So many sequences decoded without a draft."""
        self.num_answers += num_answers
        self.num_tokens += num_answers

    def copy(self) -> DraftStats:
        """The counters as of now."""
        return merged([self])

    @property
    def acceptance(self) -> np.ndarray:
        """float64 [B], of the drafts whose predecessors were accepted, the share that was accepted too."""
        return np.asarray(self.num_accepted / np.maximum(1, self.num_reached))

    @property
    def reliability(self) -> list[tuple[int, float, float]]:
        """By bin of confidence: drafts, their mean confidence, the share that was accepted."""
        return [
            (int(count), float(confidence / max(1, count)), float(accepted / max(1, count)))
            for count, confidence, accepted in zip(
                self.bin_count, self.bin_confidence, self.bin_accepted, strict=True
            )
        ]

    @property
    def rows_wasted(self) -> int:
        """Drafted rows that gave no token."""
        return int(self.num_verified.sum() - self.num_accepted.sum())

    @property
    def accepted_length(self) -> float:
        """Mean tokens of a decode step of a sequence: accepted drafts and one more."""
        return self.num_tokens / max(1, self.num_answers)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: distance of confidence and acceptance, bins weighted by their count."""
        total = int(self.bin_count.sum())
        return float(np.abs(self.bin_confidence - self.bin_accepted).sum() / total) if total else 0.0


def merged(parts: Sequence[DraftStats]) -> DraftStats:
    """The sum of all counters."""
    total = DraftStats(parts[0].block_size)
    for part in parts:
        for item in fields(DraftStats):
            if item.name != "block_size":
                setattr(total, item.name, getattr(total, item.name) + getattr(part, item.name))
    return total
