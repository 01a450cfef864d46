"""Records of a turn as columns; a record is made when somebody reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from deepinfer.engine.api import FinishReason, Float32Array, TokenRecord
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.turns.drawn import Drawn
from deepinfer.engine.turns.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class TurnRecords(Sequence[TokenRecord]):
    """N tokens of R sequences, in packed order.

    Attributes:
        names: [R], request and number of the sample.
        owners: int64 [N], whose token.
        token_ids, positions: int64 [N].
        raw, processed: float32 [N], log-probabilities.
        ends: by sequence, of those that end with their last one: why, positions that prefix hits spared, and
            preemptions.
    """

    names: Sequence[tuple[str, int]]
    owners: Int64
    token_ids: Int64
    positions: Int64
    raw: Float32Array
    processed: Float32Array
    ends: Mapping[int, tuple[FinishReason, int, int]]

    @classmethod
    def of(
        cls,
        names: Sequence[tuple[str, int]],
        known: Int64,
        drawn: Drawn,
        counts: Int64,
        outcome: Outcome,
        ends: Mapping[int, tuple[FinishReason, int, int]],
    ) -> TurnRecords:
        """Of each sequence the first ``counts`` int64 [R] tokens, behind ``known`` int64 [R] earlier ones."""
        if drawn.tokens.shape[1] == 1 and counts.all():
            single = drawn.places[:, 0]
            return cls(
                names=names,
                owners=np.arange(len(single)),
                token_ids=drawn.tokens[:, 0],
                positions=known,
                raw=outcome.raw[single],
                processed=outcome.processed[single],
                ends=ends,
            )
        owners, numbers = np.nonzero(np.arange(drawn.tokens.shape[1]) < counts[:, None])
        places = drawn.places[owners, numbers]
        return cls(
            names=names,
            owners=owners,
            token_ids=drawn.tokens[owners, numbers],
            positions=known[owners] + numbers,
            raw=outcome.raw[places],
            processed=outcome.processed[places],
            ends=ends,
        )

    def __len__(self) -> int:
        """N."""
        return len(self.owners)

    def __iter__(self) -> Iterator[TokenRecord]:
        """All records."""
        columns = (self.owners, self.token_ids, self.positions, self.raw, self.processed)
        numbers = list(zip(*(column.tolist() for column in columns), strict=True))
        for number, (owner, token, position, raw, processed) in enumerate(numbers):
            name, sample = self.names[owner]
            record = TokenRecord(name, sample, token, position, raw, processed)
            is_last = number + 1 == len(numbers) or numbers[number + 1][0] != owner
            if is_last and owner in self.ends:
                reason, hits, preemptions = self.ends[owner]
                record = record._replace(
                    finish_reason=reason, num_hit_tokens=hits, num_preemptions=preemptions
                )
            yield record

    @overload
    def __getitem__(self, place: int) -> TokenRecord: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[TokenRecord]: ...

    def __getitem__(self, place: int | slice) -> TokenRecord | Sequence[TokenRecord]:
        """One record, or a list of them."""
        return list(self)[place]
