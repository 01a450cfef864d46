"""What leaves the engine: the records of the tokens that a step made known, and why a sequence ended."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
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


def token_records(answers: Items[Answer], ends: Items[Ending], sampled: Sampled) -> list[TokenRecord]:
    """Records of the tokens of a step that are given out: of every answer as far as its end says."""
    raw, processed = sampled.raw_values, sampled.processed_values
    top_ids, top_logprobs = sampled.top_ids, sampled.top_logprobs
    records = []
    for answer, end in zip(answers, ends, strict=True):
        (sequence, *_), token_ids, first_row, *_ = answer
        num_tokens, _, reason = end
        place = len(sequence.output_ids) - len(token_ids)
        sheet = None if place or sequence.sheet is None else sequence.sheet.result()
        request_id, sample_index = sequence.request.request_id, sequence.sample_index
        position = sequence.prompt_length + place
        for number in range(num_tokens):
            row = first_row + number
            ids, logprobs = top_ids[row], top_logprobs[row]
            told = (
                *(request_id, sample_index, token_ids[number], position + number, raw[row], processed[row]),
                () if ids is None else tuple(ids.tolist()),
                () if logprobs is None else tuple(logprobs.tolist()),
                None if number else sheet,
            )
            if reason is None or number + 1 < num_tokens:
                records.append(TokenRecord(*told))
            else:
                records.append(TokenRecord(*told, reason, sequence.num_hit_tokens, sequence.num_preemptions))
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
