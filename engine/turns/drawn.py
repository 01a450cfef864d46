"""The tokens of a turn that stand, sequence by sequence, without a look at any of them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.step_plan import Int64
from deepinfer.engine.turns.outcome import Outcome

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Of R sequences, at most q tokens each.

    Attributes:
        tokens: int64 [R, q], those that stand and what lies behind them.
        places: int64 [R, q], rows of the turn that drew them.
        stands: bool [R, q], which tokens stand: accepted drafts and one more, cut behind an end token.
        counts: int64 [R], how many.
        verified: int64 [R, 2], drafts that the turn looked at, and how many of them were right.
        is_stopped: bool [R], whether the last one is an end token.
    """

    tokens: Int64
    places: Int64
    stands: Bools
    counts: Int64
    verified: Int64
    is_stopped: Bools

    @classmethod
    def of(
        cls,
        outcome: Outcome,
        rows: Int64,
        width: int,
        ends: Bools,
        eos_token_id: int,
        stops: Mapping[int, Items[int]],
    ) -> Drawn:
        """Of the sequences ``rows`` int64 [R] of a turn with at most ``width`` rows each.

        ``ends`` bool [R] says who ends with the end token; ``stops`` have more such tokens of single ones.
        """
        if width == 1:
            return cls._of_single_rows(outcome, rows, ends, eos_token_id, stops)
        accepted = outcome.accepted[rows]
        first = (np.cumsum(outcome.count) - outcome.count)[rows]
        number = np.arange(width)
        places = np.minimum(first[:, None] + number, len(outcome.ids) - 1)
        tokens, stands = outcome.ids[places], number <= accepted[:, None]
        hits = stands & ends[:, None] & (tokens == eos_token_id)
        for place, ids in stops.items():
            hits[place] |= stands[place] & np.isin(tokens[place], ids)
        counts, is_stopped = accepted + 1, hits.any(1)
        if is_stopped.any():
            counts = np.where(is_stopped, hits.argmax(1) + 1, counts)
            stands = number < counts[:, None]
        verified = np.stack([outcome.count[rows] - 1, accepted], 1)
        return cls(
            tokens=tokens, places=places, stands=stands, counts=counts, verified=verified,
            is_stopped=is_stopped,
        )  # fmt: skip

    @classmethod
    def _of_single_rows(
        cls, outcome: Outcome, rows: Int64, ends: Bools, eos_token_id: int, stops: Mapping[int, Items[int]]
    ) -> Drawn:
        """The same without drafts, where every token stands."""
        count, ids = len(rows), outcome.ids[rows]
        is_stopped = ends & (ids == eos_token_id)
        for place, asked in stops.items():
            is_stopped[place] |= ids[place] in asked
        return cls(
            tokens=ids[:, None], places=rows[:, None], stands=np.ones((count, 1), np.bool_),
            counts=np.ones(count, np.int64), verified=np.zeros((count, 2), np.int64), is_stopped=is_stopped,
        )  # fmt: skip

    def is_sound(self, outcome: Outcome) -> bool:
        """Whether what stands was drawn from finite logits."""
        if self.tokens.shape[1] == 1:
            least, raw = int(self.tokens.min()), outcome.raw[self.places[:, 0]]
            return least >= 0 and bool(np.isfinite(raw).all())
        places, tokens = self.places[self.stands], self.tokens[self.stands]
        return bool(np.isfinite(outcome.raw[places]).all() and (tokens >= 0).all())


class LateTokens:
    """Tokens that sequences have not been told yet; room for ``size`` of each of R."""

    def __init__(self, count: int, size: int) -> None:
        """Nothing is late."""
        self._tokens = np.zeros((count, size), np.int64)
        self._counts, self._told = np.zeros((2, count), np.int64)

    def has_room(self, width: int) -> bool:
        """Whether a turn of so many rows a sequence can be noted."""
        return int(self._counts.max()) + width <= self._tokens.shape[1]

    def clear(self) -> None:
        """All were told everything."""
        self._counts[:] = self._told[:] = 0

    def note(self, drawn: Drawn) -> None:
        """Keep what stands."""
        if drawn.tokens.shape[1] == 1:
            self._tokens[np.arange(len(self._counts)), self._counts] = drawn.tokens[:, 0]
            self._counts += 1
            return
        places, numbers = np.nonzero(drawn.stands)
        self._tokens[places, self._counts[places] + numbers] = drawn.tokens[places, numbers]
        self._counts += drawn.counts

    def take(self, place: int) -> list[int]:
        """What a sequence does not know yet; it does from now on."""
        found: list[int] = self._tokens[place, self._told[place] : self._counts[place]].tolist()
        self._told[place] = self._counts[place]
        return found

    def keep(self, kept: Bools) -> None:
        """Forget the others."""
        self._tokens, self._counts, self._told = self._tokens[kept], self._counts[kept], self._told[kept]
