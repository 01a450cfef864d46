"""How much a run of verify looks at."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Size(StrEnum):
    """Before a commit, by default, and before a release."""

    QUICK = "quick"
    DEFAULT = "default"
    THOROUGH = "thorough"

    def pick(self, quick: T, default: T, thorough: T) -> T:
        """The value for this size."""
        return {Size.QUICK: quick, Size.DEFAULT: default, Size.THOROUGH: thorough}[self]
