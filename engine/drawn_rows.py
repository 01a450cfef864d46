"""Tokens of a step: every last known row and every drafted row draws one, and some of them stand."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import chain

import torch

from deepinfer.engine.api import SamplingParams
from deepinfer.engine.sampler import Sampled, describe_rows, draw_rows
from deepinfer.engine.scheduler import Share
from deepinfer.engine.speculation.acceptance import emitted_rows
from deepinfer.engine.transfer import fetched, moved
from deepinfer.kernels.interface import Ops


@dataclass(frozen=True)
class DrawnRows:
    """Rows that stand: those of accepted drafts, and one more for every sequence.

    Attributes:
        logits: float32 [n, V].
        ids: int64 [n], what they drew.
        processed: float32 [n], log-probability of that after processing.
        counts: rows of each sequence.
        params, positions: of each row.
    """

    logits: torch.Tensor
    ids: torch.Tensor
    processed: torch.Tensor
    counts: tuple[int, ...]
    params: Items[SamplingParams]
    positions: Items[int]

    def tokens(self) -> list[list[int]]:
        """What each sequence drew; waits for a device. -1 where logits are not finite, see ``describe``."""
        ids: list[int] = fetched(self.ids)[0].tolist()
        found, first = [], 0
        for count in self.counts:
            found.append(ids[first : first + count])
            first += count
        return found

    def describe(self, ops: Ops) -> Sampled:
        """Everything that is given out of them.

        Raises:
            NonFiniteError: see ``describe_rows``.
        """
        return describe_rows(ops, self.logits, self.ids, self.processed, self.params, self.positions)


def draw(ops: Ops, logits: torch.Tensor, shares: Items[Share]) -> DrawnRows:
    """Draw a token for each of ``logits`` [R, V], 1 + drafts of each share; keep what stands."""
    owners = [(s.sequence, j) for s in shares for j in range(1 + s.num_drafts)]
    params = [sequence.request.params for sequence, _ in owners]
    positions = [sequence.num_tokens + j for sequence, j in owners]
    ids, processed = draw_rows(
        ops,
        logits,
        params,
        [sequence.seed for sequence, _ in owners],
        positions,
        [sequence.sample_index for sequence, _ in owners],
    )
    if len(owners) == len(shares):  # nothing has to be waited for yet
        return DrawnRows(logits, ids, processed, (1,) * len(shares), params, positions)
    drafts = [s.sequence.drafts.tokens[: s.num_drafts].tolist() for s in shares]
    rows = emitted_rows(fetched(ids)[0].tolist(), drafts)
    kept = list(chain.from_iterable(rows))
    if len(kept) < len(owners):
        # of one sequence the first rows stand, which takes no copy
        picked = slice(len(kept)) if len(shares) == 1 else moved(torch.tensor(kept), ops.device)
        logits, ids, processed = logits[picked], ids[picked], processed[picked]
        params, positions = [params[row] for row in kept], [positions[row] for row in kept]
    return DrawnRows(logits, ids, processed, tuple(map(len, rows)), params, positions)
