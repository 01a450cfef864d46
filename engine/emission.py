"""What leaves the engine: the records of the tokens that a step made known, and why a sequence ended."""

from __future__ import annotations

import math
from typing import NamedTuple

from deepinfer.engine.api import FinishReason, TokenRecord
from deepinfer.engine.sampler import Sampled
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.step_run import Answer
from deepinfer.engine.stopping import finish_reason


class Ending(NamedTuple):
    """How far an answer goes; a tuple, as answers are.

    Attributes:
        num_tokens: tokens of it that are given out.
        num_computed: positions that plain decoding would have computed by then.
        reason: why the sequence ends there, None if it goes on.
    """

    num_tokens: int
    num_computed: int
    reason: FinishReason | None


def ending(answer: Answer, eos_token_id: int, max_model_len: int) -> Ending:
    """Look at the tokens of an answer one by one, as plain decoding does; the sequence has them already."""
    sequence = answer.share.sequence
    if not answer.is_over and sequence.request.should_stop is None:
        return Ending(len(answer.token_ids), sequence.num_tokens - 1, None)
    num_known = sequence.num_emitted - len(answer.token_ids)
    for count in range(1, len(answer.token_ids) + 1):
        reason = finish_reason(
            sequence.request.params,
            sequence.prompt_length,
            sequence.output_ids[: num_known + count],
            eos_token_id=eos_token_id,
            max_model_len=max_model_len,
            stop_text=sequence.request.should_stop,
        )
        if reason is not None:
            break
    return Ending(count, sequence.prompt_length + num_known + count - 1, reason)


def token_records(answer: Answer, end: Ending, sampled: Sampled) -> list[TokenRecord]:
    """Records of the tokens of an answer that are given out."""
    sequence, last = answer.share.sequence, end.num_tokens - 1
    first = sequence.num_emitted - len(answer.token_ids)
    request_id, sample_index = sequence.request.request_id, sequence.sample_index
    raw, processed = sampled.raw_values, sampled.processed_values
    records = []
    for number in range(end.num_tokens):
        row, place = answer.first_row + number, first + number
        sheet = sequence.sheet if place == 0 else None
        reason = end.reason if number == last else None
        top_ids, top_logprobs = sampled.top_ids[row], sampled.top_logprobs[row]
        records.append(
            TokenRecord(
                request_id=request_id,
                sample_index=sample_index,
                token_id=answer.token_ids[number],
                position=sequence.prompt_length + place,
                raw_logprob=raw[row],
                processed_logprob=processed[row],
                top_ids=() if top_ids is None else tuple(top_ids.tolist()),
                top_logprobs=() if top_logprobs is None else tuple(top_logprobs.tolist()),
                prompt=None if sheet is None else sheet.result(),
                finish_reason=reason or "",
                num_hit_tokens=sequence.num_hit_tokens if reason else 0,
                num_preemptions=sequence.num_preemptions if reason else 0,
            )
        )
    return records


def terminal_record(sequence: Sequence, reason: FinishReason) -> TokenRecord:
    """Record of a sequence that ends without a token."""
    return TokenRecord(
        request_id=sequence.request.request_id,
        sample_index=sequence.sample_index,
        token_id=None,
        position=sequence.num_tokens,
        raw_logprob=math.nan,
        processed_logprob=math.nan,
        finish_reason=reason,
        num_hit_tokens=sequence.num_hit_tokens,
        num_preemptions=sequence.num_preemptions,
    )
