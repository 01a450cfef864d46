"""What sampling parameters may be: a wrong one gets a one-line reason, no exception and no silent repair."""

from __future__ import annotations

import math
from collections.abc import Mapping

from deepinfer.engine.api import SamplingParams

MAX_SEED = 2**64 - 1
_MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
_MAX_SAMPLES = 1024  # each is queued at once; the random counter would allow 2**32
_MAX_COUNT = 2**63 - 1


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_int(value)


def _bias_reason(bias: object, vocab_size: int) -> str | None:
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        return "logit_bias must map token ids to numbers"
    for token, value in bias.items():
        if not _is_int(token) or not 0 <= token < vocab_size:
            return f"logit_bias names token {token!r}; use ids 0..{vocab_size - 1}"
        if not _is_number(value) or not (value == -math.inf or abs(value) <= _MAX_FLOAT32):
            return f"logit_bias of token {token} is {value!r}; use a finite number or -inf"
    if sum(value == -math.inf for value in bias.values()) == vocab_size:
        return "logit_bias bans every token; leave at least one"
    return None


def validate(params: SamplingParams, vocab_size: int) -> str | None:
    """What is wrong with ``params`` for a vocabulary, in one line, or None.

    Types are checked too: a request may come from JSON.
    """
    numbers = {
        "temperature": (params.temperature, 0.0, _MAX_FLOAT32, "0 (greedy) or a finite positive number"),
        "top_p": (params.top_p, 2.0**-149, 1.0, "above 0 up to 1 (off)"),
        "min_p": (params.min_p, 0.0, 1.0, "0 (off) to 1"),
    }
    for name, (number, lowest, highest, allowed) in numbers.items():
        if not _is_number(number) or not lowest <= number <= highest:
            return f"{name} is {number!r}; use {allowed}"
    counts = {
        "top_k": (params.top_k, 0, _MAX_COUNT, "0 (off) or a positive integer"),
        "n": (params.n, 1, _MAX_SAMPLES, f"an integer in 1..{_MAX_SAMPLES}"),
        "max_tokens": (params.max_tokens, 1, _MAX_COUNT, "a positive integer"),
        "num_logprobs": (params.num_logprobs, 0, vocab_size, f"an integer in 0..{vocab_size}"),
        "seed": (0 if params.seed is None else params.seed, 0, MAX_SEED, f"an integer in 0..{MAX_SEED}"),
    }
    for name, (count, least, most, allowed) in counts.items():
        if not _is_int(count) or not least <= count <= most:
            return f"{name} is {count!r}; use {allowed}"
    if not isinstance(params.ignore_eos, bool):
        return f"ignore_eos is {params.ignore_eos!r}; use true or false"
    if not isinstance(params.stop_token_ids, tuple | list):
        return "stop_token_ids must be a list of token ids"
    for token in params.stop_token_ids:
        if not _is_int(token) or not 0 <= token < vocab_size:
            return f"stop_token_ids holds {token!r}; use ids 0..{vocab_size - 1}"
    return _bias_reason(params.logit_bias, vocab_size)
