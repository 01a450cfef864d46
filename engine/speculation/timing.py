"""How long a decode step took, and what it gave."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import Enum


class Drafting(Enum):
    """What a step does for drafts: make them, keep their contexts only, or nothing."""

    ON = "on"
    WATCHING = "watching"
    PAUSED = "paused"


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """A step without rows of prompts.

    Attributes:
        num_sequences: sequences that decode.
        num_drafts: drafts that the step had rows for.
        num_tokens: tokens that the step gave.
        drafting: what it did for the drafts of the next one.
        seconds: from the end of the step before to its own.
        verified: drafts of each sequence that were verified, and how many were accepted; empty for a step
            without any.
    """

    num_sequences: int
    num_drafts: int
    num_tokens: int
    drafting: Drafting
    seconds: float
    verified: Items[Items[int]] = ()
