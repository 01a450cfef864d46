"""Scores requests in waves: as many at once as a step takes, in one step each where they fit it.

On a device the next wave is planned and started while one runs, and waves of one shape are played from a
recording (``step_graphs``). Neither moves a bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from deepinfer.engine.api import EngineConfig, RequestFailure, ScoreRequest, ScoreResult
from deepinfer.engine.logprobs import ScoreSheet, filling_sheets
from deepinfer.engine.model.transformer import Transformer
from deepinfer.engine.prefill import PrefillRule
from deepinfer.engine.requests import checked_ids
from deepinfer.engine.runner import Home, Wave
from deepinfer.engine.step_padding import SMALL_ROWS
from deepinfer.engine.torch_threads import torch_threads_of

MAX_RECORDED = 8192
"""Tokens of a wave whose steps are recorded; a longer one keeps a device busy without."""

Waiting = list[ScoreSheet | RequestFailure]
"""Requests of a wave in order, those that were refused among them."""


class Scorer:
    """Scores on one model; keeps caches and recordings from wave to wave if steps are recorded."""

    def __init__(self, model: Transformer, rule: PrefillRule, config: EngineConfig) -> None:
        """Nothing is allocated before the first wave."""
        self._model, self._rule, self._config = model, rule, config
        self._max_recorded = min(config.max_batch_tokens, MAX_RECORDED)
        self._num_ahead = 0 if model.ops.device.type == "cpu" else 1

    def score(self, requests: Iterable[ScoreRequest]) -> Iterator[ScoreResult | RequestFailure]:
        """See ``LLM.score_iter``."""
        started: deque[Callable[[], Waiting]] = deque()
        for waiting in self._waves(requests):
            started.append(self._start(waiting))
            if len(started) > self._num_ahead:
                yield from map(_answer, started.popleft()())
        for finish in started:
            yield from map(_answer, finish())

    def _waves(self, requests: Iterable[ScoreRequest]) -> Iterator[Waiting]:
        """Up to ``max_batch_tokens`` together, and never nothing."""
        waiting: Waiting = []
        num_tokens = 0
        for request in requests:
            ids = checked_ids(request, self._model.config)
            size = 0 if isinstance(ids, RequestFailure) else len(ids)
            if waiting and num_tokens + size > self._config.max_batch_tokens:
                yield waiting
                waiting, num_tokens = [], 0
            if isinstance(ids, RequestFailure):
                waiting.append(ids)
            else:
                first = self._rule.low(len(ids)) + 1
                waiting.append(ScoreSheet(request, ids, first, self._model.config.vocab_size))
            num_tokens += size
        if waiting:
            yield waiting

    def _start(self, waiting: Waiting) -> Callable[[], Waiting]:
        """Start a wave; what comes back waits for its last step."""
        sheets = [item for item in waiting if isinstance(item, ScoreSheet)]
        sequences = [sheet.token_ids for sheet in sheets]
        is_small = sum(map(len, sequences)) <= self._max_recorded and len(sequences) <= SMALL_ROWS
        wave = Wave(self._model, None, self._rule, sequences, self._home if is_small else None)
        parts = []
        with torch_threads_of(self._model.ops):
            for rows in wave.run(self._config.max_batch_tokens, self._config.max_chunk_tokens):
                parts.append(filling_sheets(self._model, rows, sheets))
                if len(parts) > 1:  # a document of many steps leaves one unfinished, not all of them
                    parts.pop(0)()

        def finish() -> Waiting:
            for fill in parts:
                fill()
            return waiting

        return finish

    @cached_property
    def _home(self) -> Home | None:
        if not (self._config.records_steps and self._model.ops.can_be_recorded):
            return None
        return Home.of(self._model, self._max_recorded, SMALL_ROWS)


def _answer(item: ScoreSheet | RequestFailure) -> ScoreResult | RequestFailure:
    return item.result() if isinstance(item, ScoreSheet) else item
