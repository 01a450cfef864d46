"""Records of a turn as columns; a record is made when somebody reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from deepinfer.engine.api import FinishReason, Float32Array, TokenRecord
from deepinfer.engine.step_plan import Int64


@dataclass(frozen=True, kw_only=True)
class TurnRecords(Sequence[TokenRecord]):
    """One token of each of R sequences.

    Attributes:
        names: [R], request and number of the sample.
        token_ids, positions: int64 [R].
        raw, processed: float32 [R], log-probabilities.
        ends: by place, of those that end there: why, positions that prefix hits spared, and preemptions.
    """

    names: Sequence[tuple[str, int]]
    token_ids: Int64
    positions: Int64
    raw: Float32Array
    processed: Float32Array
    ends: Mapping[int, tuple[FinishReason, int, int]]

    def __len__(self) -> int:
        """R."""
        return len(self.names)

    def __iter__(self) -> Iterator[TokenRecord]:
        """All records, in packed order."""
        columns = (self.token_ids, self.positions, self.raw, self.processed)
        numbers = zip(self.names, *(column.tolist() for column in columns), strict=True)
        for place, ((name, sample), token, position, raw, processed) in enumerate(numbers):
            record = TokenRecord(name, sample, token, position, raw, processed)
            if place in self.ends:
                reason, hits, preemptions = self.ends[place]
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
