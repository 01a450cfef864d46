"""What a check is: a name, a sentence, and a function from a context to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from deepinfer.verify.case import Case
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import CheckResult


class Tier(StrEnum):
    """Depth of the YOCO equivalence: plans only, log-probabilities and caches, drafts and confidences."""

    METADATA = "metadata"
    LOGPROBS = "logprobs"
    CONFIDENCE = "confidence"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One promise, put to the test.

    Attributes:
        name: what the user types.
        about: one sentence for ``verify --list``: what is run on the two sides and what is compared.
        run: the check itself.
        tier: the YOCO tier it belongs to, if any.
        cases: the cases it is made of, if it is made of cases; the same ones on every run.
        needs_model: whether it runs the model; such checks mean nothing once values are not finite.
    """

    name: str
    about: str
    run: Callable[[CheckContext], CheckResult]
    tier: Tier | None = None
    cases: Callable[[CheckContext], Iterator[Case]] | None = None
    needs_model: bool = True
