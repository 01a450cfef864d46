"""How long a decode step took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """A step without rows of prompts.

    Attributes:
        num_sequences: sequences that decode.
        num_rows: their rows, drafted ones included.
        num_tokens: tokens that the step gave.
        is_drafting: whether contexts were kept for drafting and drafts were made.
        run_s: seconds of everything but drafting.
        draft_s: seconds of drafting.
    """

    num_sequences: int
    num_rows: int
    num_tokens: int
    is_drafting: bool
    run_s: float
    draft_s: float
