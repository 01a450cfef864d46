"""What ``deepinfer generate`` says about finished samples: one JSON document, or lines for a reader."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from deepinfer import __version__
from deepinfer.engine.api import RequestFailure, SamplingParams
from deepinfer.eval.detokenizer import StopStrings
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.environment import describe_environment
from deepinfer.eval.generate import Outcome, Sample
from deepinfer.eval.prompts import Prompt
from deepinfer.eval.report import render_table
from deepinfer.eval.runner import describe_scorer
from deepinfer.eval.tokenizer import TextTokenizer


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """2 when a prompt could not be run, otherwise 0."""
    return 2 if any(isinstance(outcome, RequestFailure) for outcome in outcomes) else 0


def to_document(
    engine: Scorer,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    stops: StopStrings,
    outcomes: Sequence[Outcome],
) -> dict[str, Any]:
    """JSON values with everything that repeats the run: checkpoint, configuration, parameters, ids.

    Args:
        engine: what ran; hashes its checkpoint.
        prompts: all that were asked for.
        params: with the seed that was used.
        stops: the stop strings.
        outcomes: in the order of the prompts.
    """
    samples: dict[str, list[Sample]] = defaultdict(list)
    failures: dict[str, str] = {}
    for outcome in outcomes:
        if isinstance(outcome, RequestFailure):
            failures[outcome.request_id] = outcome.reason
        else:
            samples[outcome.prompt_id].append(outcome)
    assert params.seed is not None, "a seed was given or drawn"
    return {
        "exit_code": exit_code(outcomes),
        "deepinfer": __version__,
        "configuration": describe_scorer(engine),
        "sampling": _describe_sampling(params, stops),
        "environment": describe_environment(),
        "prompts": [
            {
                "id": prompt.prompt_id,
                "text": prompt.text,
                "token_ids": list(prompt.token_ids),
                "failure": failures.get(prompt.prompt_id),
                "samples": [sample.to_dict(params.seed) for sample in samples[prompt.prompt_id]],
            }
            for prompt in prompts
        ],
    }


def _describe_sampling(params: SamplingParams, stops: StopStrings) -> dict[str, Any]:
    # JSON has no infinity; "-inf" is what --logit-bias and Python's float() read
    bias = {
        str(token_id): value if math.isfinite(value) else str(value)
        for token_id, value in (params.logit_bias or {}).items()
    }
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "logit_bias": bias,
        "seed": params.seed,
        "n": params.n,
        "max_tokens": params.max_tokens,
        "stop": list(stops.texts),
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": params.ignore_eos,
        "num_logprobs": params.num_logprobs,
    }


def render_heading(sample: Sample) -> str:
    """One line above the text of one sample of several."""
    return f"== {sample.prompt_id}, sample {sample.sample_index} ({describe_end(sample)})"


def describe_end(sample: Sample) -> str:
    """Why a sample ended, and after how many tokens."""
    return f"{sample.finish_reason}, {len(sample.records)} tokens"


def describe_prompt(sample: Sample) -> str | None:
    """How the model likes the prompt, if it was scored; says how many tokens have no score."""
    if sample.prompt is None:
        return None
    valid = sample.prompt.valid
    if not valid.any():
        return f"prompt: none of {len(valid)} tokens has a score"
    nll = -math.fsum(sample.prompt.logprobs[valid].tolist()) / int(valid.sum())
    return f"prompt: {int(valid.sum())} of {len(valid)} tokens scored, {nll:.4f} nats a token"


def render_logprobs(sample: Sample, tokenizer: TextTokenizer) -> str:
    """A table with each token's log-probabilities, and the most likely tokens if they were asked for."""

    def spell(token_id: int) -> str:
        return repr(tokenizer.bytes_of(token_id).decode("utf-8", "backslashreplace"))

    rows = []
    for record in sample.records:
        assert record.token_id is not None, "samples hold records of tokens only"
        tops = zip(record.top_ids, record.top_logprobs, strict=True)
        rows.append(
            [
                str(record.position),
                str(record.token_id),
                f"{record.raw_logprob:.4f}",
                f"{record.processed_logprob:.4f}",
                spell(record.token_id),
                "  ".join(f"{spell(token_id)} {logprob:.4f}" for token_id, logprob in tops),
            ]
        )
    header = ["position", "id", "raw", "processed", "token", "most likely (raw)"]
    if not any(record.top_ids for record in sample.records):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return "\n".join(render_table(header, rows, text_columns=0))
