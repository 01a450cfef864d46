"""When a sequence ends; asked once after each token.

Text never enters the engine. A caller that wants stop strings passes a function that decodes the tokens
generated so far and says whether one has appeared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deepinfer.engine.api import FinishReason, SamplingParams

StopText = Callable[[Sequence[int]], bool]
"""Generated ids so far, prompt excluded -> whether a stop string has appeared."""


def is_stop_token(params: SamplingParams, token_id: int, eos_token_id: int) -> bool:
    """Whether this token ends a sequence by itself."""
    return token_id in params.stop_token_ids or (token_id == eos_token_id and not params.ignore_eos)


def finish_reason(
    params: SamplingParams,
    num_prompt_tokens: int,
    output_ids: Sequence[int],
    *,
    eos_token_id: int,
    max_model_len: int,
    stop_text: StopText | None = None,
) -> FinishReason | None:
    """Why the sequence ends after the last of ``output_ids``, or None.

    Order: end token, stop ids, stop text, then lengths, so a sequence that ends by itself at its last allowed
    token has stopped. The token that ends it is part of the output.

    Args:
        output_ids: generated so far, at least one.
        max_model_len: positions the model can read. The last token is never read, so a full prompt still
            yields one token.
        stop_text: see ``StopText``; asked only if no id has ended the sequence.
    """
    if is_stop_token(params, output_ids[-1], eos_token_id):
        return FinishReason.STOP
    if stop_text is not None and stop_text(output_ids):
        return FinishReason.STOP
    if num_prompt_tokens + len(output_ids) > max_model_len or len(output_ids) >= params.max_tokens:
        return FinishReason.LENGTH
    return None
