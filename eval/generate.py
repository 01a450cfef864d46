"""``deepinfer generate``: continue prompts, and follow each sample's text while its tokens come."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from deepinfer.engine.api import GenerateRequest, RequestFailure, SamplingParams, ScoreResult, TokenRecord
from deepinfer.engine.errors import InputError
from deepinfer.engine.sampling_rules import validate
from deepinfer.eval.detokenizer import StopStrings, TextStream
from deepinfer.eval.prompts import Prompt
from deepinfer.eval.tokenizer import TextTokenizer

_DRAWN_SEED_BITS = 53
"""Bits of a seed that is drawn here: whole in every JSON reader, also where numbers are doubles."""


class TokenSource(Protocol):
    """The part of ``engine.llm.LLM`` that generation needs."""

    def generate_iter(self, requests: Sequence[GenerateRequest]) -> Iterator[TokenRecord | RequestFailure]:
        """Continue all requests together, token by token; a bad request yields a failure."""
        ...


@dataclass(frozen=True, kw_only=True)
class TextPiece:
    """Text that a sample has gained.

    Attributes:
        prompt_id, sample_index: whose text.
        text: whole characters; never empty.
    """

    prompt_id: str
    sample_index: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One finished continuation.

    Attributes:
        prompt_id, sample_index: whose.
        text: all pieces together; it ends before a stop string, where ``records`` hold every token.
        finish_reason: see ``TokenRecord``.
        records: the tokens; a last record without a token is left out.
    """

    prompt_id: str
    sample_index: int
    text: str
    finish_reason: str
    records: tuple[TokenRecord, ...]

    @property
    def prompt(self) -> ScoreResult | None:
        """Scores of the prompt, if they were asked for."""
        return self.records[0].prompt if self.records else None

    def to_dict(self, seed: int) -> dict[str, Any]:
        """JSON values; log-probabilities are float32 values, which JSON keeps bit for bit."""
        prompt = self.prompt
        return {
            "sample_index": self.sample_index,
            "seed": seed,
            "text": self.text,
            "token_ids": [record.token_id for record in self.records],
            "finish_reason": self.finish_reason,
            "raw_logprobs": [_number(record.raw_logprob) for record in self.records],
            "processed_logprobs": [_number(record.processed_logprob) for record in self.records],
            "tops": [
                [
                    {"token_id": token_id, "raw_logprob": _number(logprob)}
                    for token_id, logprob in zip(record.top_ids, record.top_logprobs, strict=True)
                ]
                for record in self.records
            ],
            # null where truncated prefill computed no row, and for the first token, which nothing predicts
            "prompt_logprobs": None if prompt is None else [_number(p) for p in prompt.logprobs.tolist()],
        }


Outcome = Sample | RequestFailure


def with_seed(params: SamplingParams) -> SamplingParams:
    """The same parameters with a seed, drawn from the system if there was none."""
    if params.seed is not None:
        return params
    return replace(params, seed=secrets.randbits(_DRAWN_SEED_BITS))


def generate(
    source: TokenSource,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    stops: StopStrings,
    tokenizer: TextTokenizer,
    vocab_size: int,
    prompt_logprobs: bool = False,
) -> Iterator[TextPiece | Outcome]:
    """Continue all prompts together; yields text as it becomes final, each sample as it ends, and failures.

    Raises:
        InputError: the sampling parameters are none, so that no prompt could be run.
        NonFiniteError: the model's logits are not finite.
    """
    problem = validate(params, vocab_size)
    if problem:
        raise InputError(problem)

    def should_stop(token_ids: Sequence[int]) -> bool:
        return stops.appear_in(tokenizer, token_ids)

    requests = [
        GenerateRequest(
            request_id=prompt.prompt_id,
            token_ids=prompt.token_ids,
            params=params,
            prompt_logprobs=prompt_logprobs,
            should_stop=should_stop if stops.texts else None,
        )
        for prompt in prompts
    ]
    growing: dict[tuple[str, int], _GrowingSample] = {}
    for item in source.generate_iter(requests):
        if isinstance(item, RequestFailure):
            yield item
            continue
        key = (item.request_id, item.sample_index)
        if key not in growing:
            growing[key] = _GrowingSample(tokenizer, stops)
        text = growing[key].add(item)
        if text:
            yield TextPiece(prompt_id=item.request_id, sample_index=item.sample_index, text=text)
        if item.finish_reason:
            yield growing.pop(key).finished(item)


def in_order(events: Iterable[TextPiece | Outcome], prompts: Sequence[Prompt], n: int) -> Iterator[Outcome]:
    """The outcomes alone, each as soon as all before it are there: prompt by prompt, sample by sample."""
    ready: dict[tuple[str, int], Outcome] = {}
    waiting = iter([(prompt.prompt_id, index) for prompt in prompts for index in range(n)])
    key = next(waiting, None)
    for event in events:
        if isinstance(event, TextPiece):
            continue
        if isinstance(event, RequestFailure):
            ready |= {(event.request_id, index): event for index in range(n)}
        else:
            ready[event.prompt_id, event.sample_index] = event
        while key in ready:
            outcome = ready.pop(key)
            if isinstance(outcome, Sample) or key[1] == 0:  # a failure stands for all samples of its prompt
                yield outcome
            key = next(waiting, None)
    assert key is None, "the engine ends every sample"


class _GrowingSample:
    """Records and text of a sample that has not ended."""

    def __init__(self, tokenizer: TextTokenizer, stops: StopStrings) -> None:
        self._stream = TextStream(tokenizer, stops)
        self._records: list[TokenRecord] = []
        self._pieces: list[str] = []

    def add(self, record: TokenRecord) -> str:
        """Note a record; returns the text that became final by it."""
        text = ""
        if record.token_id is not None:
            self._records.append(record)
            text = self._stream.push(record.token_id)
        if record.finish_reason:
            text += self._stream.finish()
        self._pieces.append(text)
        return text

    def finished(self, last: TokenRecord) -> Sample:
        return Sample(
            prompt_id=last.request_id,
            sample_index=last.sample_index,
            text="".join(self._pieces),
            finish_reason=str(last.finish_reason),
            records=tuple(self._records),
        )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
