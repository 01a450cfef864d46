"""How often a draft is accepted, by its place in the block, as met so far."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from deepinfer.engine.api import Float32Array
from deepinfer.engine.step_plan import Int64

_GUESS, _WEIGHT = 0.5, 8.0
"""Chance of a first draft that nobody has met, and how many drafts that guess counts for."""
_MANY = 16
"""Sequences from which arrays are quicker than a loop."""
_MEMORY = 4096.0
"""First drafts after which the counts are halved."""


class AcceptanceProfile:
    """Counts of all sequences together."""

    def __init__(self, num_drafts: int) -> None:
        """``num_drafts``: B."""
        self._reached, self._accepted = [0.0] * num_drafts, [0.0] * num_drafts
        self._found: Float32Array | None = None  # what ``chances`` gives until something is learned

    def learn(self, verified: Items[Items[int]] | Int64) -> None:
        """Drafts of sequences that were verified, and how many of them were accepted."""
        if len(verified) == 0:
            return
        self._found = None
        if isinstance(verified, np.ndarray) or len(verified) >= _MANY:
            self._learn_many(np.asarray(verified))
        else:
            for num_drafts, num_accepted in verified:
                for place in range(min(num_accepted + 1, num_drafts)):
                    self._reached[place] += 1
                for place in range(num_accepted):
                    self._accepted[place] += 1
        if self._reached[0] > _MEMORY:
            self._reached, self._accepted = (
                [count / 2 for count in counts] for counts in (self._reached, self._accepted)
            )

    def _learn_many(self, verified: Int64) -> None:
        accepted, size = verified[:, 1], len(self._reached)
        ends = np.bincount(np.minimum(accepted + 1, verified[:, 0]), minlength=size + 1).tolist()
        hits = np.bincount(accepted, minlength=size + 1).tolist()
        reached = got = 0
        for place in range(size - 1, -1, -1):  # who ends behind a place has reached it
            reached, got = reached + ends[place + 1], got + hits[place + 1]
            self._reached[place] += reached
            self._accepted[place] += got

    def chances(self) -> Float32Array:
        """float32 [B]: of drafts whose predecessors were accepted, the share that is too; not to be changed.

        A place that was hardly met counts like the one before it.
        """
        if self._found is None:
            found, before = [], _GUESS
            for reached, accepted in zip(self._reached, self._accepted, strict=True):
                before = (accepted + _WEIGHT * before) / (reached + _WEIGHT)
                found.append(before)
            self._found = np.array(found, np.float32)
        return self._found
