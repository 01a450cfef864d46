"""How long a decode step took, and what it gave."""

from __future__ import annotations

from collections.abc import Sequence as Items
from enum import Enum
from typing import NamedTuple

from deepinfer.engine.step_plan import Int64


class Drafting(Enum):
    """What a step does for drafts: make them, keep their contexts only, or nothing."""

    ON = "on"
    WATCHING = "watching"
    PAUSED = "paused"

    # members are single, so identity does; Enum's own is a call of Python, and such keys are many a turn
    __hash__ = object.__hash__


class StepTiming(NamedTuple):
    """A step without rows of prompts; a tuple, since one is made in every step.

    Attributes:
        num_sequences: sequences that decode.
        num_drafts: drafts that the step had rows for.
        num_tokens: tokens that the step gave.
        drafting: what it did for the drafts of the next one.
        seconds: from the end of the step before to its own.
        verified: drafts of each sequence that were verified, and how many were accepted, as int64 [R, 2] or
            pairs; empty for a step without any.
    """

    num_sequences: int
    num_drafts: int
    num_tokens: int
    drafting: Drafting
    seconds: float
    verified: Items[Items[int]] | Int64 = ()
