"""How much to speculate; bits never depend on any of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SpeculationPolicy(StrEnum):
    """``off``: one token a step; ``fixed``: verify so many drafts; ``confidence``: as many as pay."""

    OFF = "off"
    FIXED = "fixed"
    CONFIDENCE = "confidence"


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """How many drafted tokens a step verifies.

    Attributes:
        policy: who decides on the number.
        num_drafts: most drafts of a sequence that a step verifies; ``None`` is the model's block size, and it
            can be no more.
    """

    policy: SpeculationPolicy = SpeculationPolicy.OFF
    num_drafts: int | None = None

    @staticmethod
    def from_text(text: str) -> Speculation:
        """``off``, ``fixed``, ``confidence``, the last two with ``:K`` for at most K drafts.

        Raises:
            ValueError: it is none of them.
        """
        policy, _, count = text.partition(":")
        return Speculation(policy=SpeculationPolicy(policy), num_drafts=int(count) if count else None)

    def __str__(self) -> str:
        """As ``from_text`` reads it."""
        return self.policy.value + ("" if self.num_drafts is None else f":{self.num_drafts}")

    @property
    def is_on(self) -> bool:
        """Whether anything is drafted at all."""
        return self.policy is not SpeculationPolicy.OFF


NO_SPECULATION = Speculation()
"""One token a step."""
