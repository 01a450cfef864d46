"""Drafts of a step that starts before the step ahead of it has landed."""

from __future__ import annotations

from typing import NamedTuple


class Unseen(NamedTuple):
    """How many are verified, whatever they are.

    Attributes:
        most: of a sequence.
        total: of all together, shared out where the drafts are known; None if each sequence has ``most``.
    """

    most: int
    total: int | None = None
