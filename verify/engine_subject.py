"""The real engine as a subject of verification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from deepinfer.engine.api import Float32Array, GenerateRequest, RequestFailure, ScoreRequest, ScoreResult
from deepinfer.engine.draft_request import DraftRequest, DraftResult
from deepinfer.verify.subject import Generated

if TYPE_CHECKING:
    from deepinfer.engine.llm import LLM
    from deepinfer.engine.model.transformer import Transformer
    from deepinfer.engine.sequence import Sequence as EngineSequence


class EngineSubject:
    """An `LLM` whose generation also hands out every logits row that a token was chosen from."""

    def __init__(self, llm: LLM) -> None:
        """Questions go to ``llm``, which keeps its caches between them."""
        self.llm = llm

    def wrapped(self, wrap: Callable[[Transformer], Transformer]) -> EngineSubject:
        """The same engine around another backbone, with caches of its own."""
        return EngineSubject(self.llm.with_model(wrap))

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult | RequestFailure]:
        """See ``Subject``."""
        return self.llm.score(requests)

    def draft(self, requests: Sequence[DraftRequest]) -> list[DraftResult | RequestFailure]:
        """See ``Subject``."""
        return self.llm.draft(requests)

    def prefill_state(self, token_ids: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """See ``Subject``."""
        return self.llm.prefill_state(token_ids)

    def generate(self, requests: Sequence[GenerateRequest], target: str) -> Generated | RequestFailure:
        """See ``Subject``."""
        rows: list[Float32Array] = []
        seen: list[EngineSequence] = []

        def observe(sequence: EngineSequence, position: int, row: Float32Array) -> None:
            if sequence.request.request_id == target:
                rows.append(row)
                seen[:] = [sequence]

        results = self.llm.generate(requests, observe)
        names = [request.request_id for request in requests]
        found = results[names.index(target) if target in names else 0]
        if isinstance(found, RequestFailure):
            return found
        records = found[0].records
        return Generated(
            token_ids=found[0].token_ids,
            positions=[record.position for record in records],
            rows=rows,
            raw_logprobs=[record.raw_logprob for record in records],
            processed_logprobs=[record.processed_logprob for record in records],
            num_hit_tokens=seen[0].num_hit_tokens if seen else 0,
            num_preemptions=seen[0].num_preemptions if seen else 0,
            num_accepted=0 if self.llm.draft_stats is None else int(self.llm.draft_stats.num_accepted.sum()),
            num_ahead=self.llm.num_steps_ahead,
        )
