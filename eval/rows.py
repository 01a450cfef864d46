"""The log-probability table: one row per position of a sample and window policy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepinfer.engine.api import BoolArray, Float32Array, Int32Array

_CANONICAL_FORM = b"rows/1 token_id:i32le logprob:f32le rank:i32le window_id:i32le valid:u8"


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleRows:
    """All rows of one sample under one policy; row p is position p.

    Attributes:
        sample_id: the sample's name.
        policy: label of the window policy.
        token_id: [S] int32, the sample's ids, begin token included.
        logprob: [S] float32, natural logarithm; quiet NaN where not valid.
        rank: [S] int32, how many tokens are more likely; -1 where not valid.
        window_id: [S] int32, the window that scored the position; -1 where no window did.
        valid: [S] bool, the position was scored.
        top_ids: [S, K] int32, most likely tokens, -1 where not valid; or None.
        top_logprobs: [S, K] float32, theirs, NaN where not valid; or None.
    """

    sample_id: str
    policy: str
    token_id: Int32Array
    logprob: Float32Array
    rank: Int32Array
    window_id: Int32Array
    valid: BoolArray
    top_ids: Int32Array | None = None
    top_logprobs: Float32Array | None = None

    def __len__(self) -> int:
        """Number of positions."""
        return len(self.token_id)

    @property
    def logprob_bits(self) -> npt.NDArray[np.uint32]:
        """[S] uint32, the log-probabilities as the bytes they are; the only safe way to compare them."""
        return self.logprob.view(np.uint32)

    @property
    def digest(self) -> str:
        """Hex sha256 over the columns' little-endian bytes: equal exactly when every bit of every row is."""
        total = hashlib.sha256(_CANONICAL_FORM)
        total.update(len(self).to_bytes(8, "little"))
        for column, form in (
            (self.token_id, "<i4"),
            (self.logprob_bits, "<u4"),
            (self.rank, "<i4"),
            (self.window_id, "<i4"),
            (self.valid, "u1"),
        ):
            total.update(np.ascontiguousarray(column).astype(form).tobytes())
        if self.top_ids is not None and self.top_logprobs is not None:
            total.update(self.top_ids.shape[1].to_bytes(8, "little"))
            total.update(np.ascontiguousarray(self.top_ids).astype("<i4").tobytes())
            total.update(np.ascontiguousarray(self.top_logprobs).view(np.uint32).astype("<u4").tobytes())
        return total.hexdigest()


def blank_rows(sample_id: str, policy: str, token_ids: Int32Array, num_top: int) -> SampleRows:
    """Rows of a sample before anything is scored: nothing valid. The arrays are fresh, to be filled in."""
    num_ids = len(token_ids)
    return SampleRows(
        sample_id=sample_id,
        policy=policy,
        token_id=token_ids,
        logprob=np.full(num_ids, np.nan, dtype=np.float32),
        rank=np.full(num_ids, -1, dtype=np.int32),
        window_id=np.full(num_ids, -1, dtype=np.int32),
        valid=np.zeros(num_ids, dtype=np.bool_),
        top_ids=np.full((num_ids, num_top), -1, dtype=np.int32) if num_top else None,
        top_logprobs=np.full((num_ids, num_top), np.nan, dtype=np.float32) if num_top else None,
    )
