"""How often a draft is accepted, by its place in the block, as met so far."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from deepinfer.engine.api import Float32Array

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

    def learn(self, verified: Items[Items[int]]) -> None:
        """Drafts of sequences that were verified, and how many of them were accepted."""
        if len(verified) < _MANY:
            for num_drafts, num_accepted in verified:
                for place in range(min(num_accepted + 1, num_drafts)):
                    self._reached[place] += 1
                for place in range(num_accepted):
                    self._accepted[place] += 1
        else:
            num_drafts, num_accepted = np.array(verified).T
            ends = np.minimum(num_accepted + 1, num_drafts)
            for place in range(len(self._reached)):
                self._reached[place] += int(np.count_nonzero(ends > place))
                self._accepted[place] += int(np.count_nonzero(num_accepted > place))
        if self._reached[0] > _MEMORY:
            self._reached, self._accepted = (
                [count / 2 for count in counts] for counts in (self._reached, self._accepted)
            )

    def chances(self) -> Float32Array:
        """float32 [B]: of drafts whose predecessors were accepted, the share that is too.

        A place that was hardly met counts like the one before it.
        """
        found, before = np.zeros(len(self._reached), np.float32), _GUESS
        for place, (reached, accepted) in enumerate(zip(self._reached, self._accepted, strict=True)):
            before = (accepted + _WEIGHT * before) / (reached + _WEIGHT)
            found[place] = before
        return found
