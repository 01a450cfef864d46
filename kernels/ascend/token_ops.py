"""Ops of kernel set ``ascend`` on scores: router, log-probabilities, sampling.

Kernels are those of ``kernels.gpu``, with logarithms that need no float64 and have its bits (``narrow_log``).
"""

from __future__ import annotations

import torch

from deepinfer.kernels.ascend.cache_ops import AscendCacheOps
from deepinfer.kernels.ascend.row_blocks import Rows, by_rows
from deepinfer.kernels.gpu.launching import ceil_div

_TOKENS = 1024
"""Fewest ids that one program of a kernel over the vocabulary computes."""


class AscendTokenOps(AscendCacheOps):
    """The ops of ``kernels.interface.Ops`` that end in a choice; see there for shapes and meaning."""

    fp64 = False

    def route(
        self, logits: torch.Tensor, bias: torch.Tensor, num_selected: int, normalise: bool, factor: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        choose = super().route

        def part(rows: torch.Tensor) -> Rows:
            return choose(rows, bias, num_selected, normalise, factor)

        ids, weights = by_rows(part, self._rows(1), logits)
        return ids, weights

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """See ``Ops``."""
        whole = super().log_softmax
        return by_rows(lambda rows: (whole(rows),), self._vocabulary_rows(logits), logits)[0]

    def token_logprobs(
        self, logits: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        logprobs, ranks = by_rows(super().token_logprobs, self._vocabulary_rows(logits), logits, targets)
        return logprobs, ranks

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_p: torch.Tensor,
        top_k: torch.Tensor,
        min_p: torch.Tensor,
        words: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Ops``."""
        operands = (logits, temperature, top_p, top_k, min_p, words)
        ids, logprobs = by_rows(super().sample, self._vocabulary_rows(logits), *operands)
        return ids, logprobs

    def _vocabulary_rows(self, logits: torch.Tensor) -> int:
        return self._rows(max(2, ceil_div(logits.shape[1], _TOKENS)))  # two: a cut has two programs a row
