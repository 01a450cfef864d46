"""Every wrong sampling parameter has its one-line reason."""

from __future__ import annotations

import math
from typing import Any

import pytest

from deepinfer.engine.api import SamplingParams
from deepinfer.engine.sampling_rules import MAX_SEED, validate

VOCABULARY = 8


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0},
        {"temperature": 1e-40, "top_p": 1e-9, "min_p": 1},
        {"top_k": 2**40, "num_logprobs": VOCABULARY, "n": 5, "max_tokens": 1},
        {"seed": 0},
        {"seed": MAX_SEED},
        {"logit_bias": {0: -math.inf, 7: -3.5, 3: 2}, "stop_token_ids": (0, 7)},
        {"logit_bias": dict.fromkeys(range(VOCABULARY - 1), -math.inf)},
    ],
)
def test_allowed_values_pass(fields: dict[str, Any]) -> None:
    assert validate(SamplingParams(**fields), VOCABULARY) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, 1e39, "1", None, True)),
        *(("top_p", value) for value in (0, -0.5, 1.0001, math.nan, "0.9")),
        *(("min_p", value) for value in (-0.01, 1.01, math.nan)),
        *(("top_k", value) for value in (-1, 1.5, True, 2**63)),
        *(("n", value) for value in (0, -1, 2.0, 1025)),
        *(("max_tokens", value) for value in (0, -4, None)),
        *(("num_logprobs", value) for value in (-1, VOCABULARY + 1)),
        *(("seed", value) for value in (-1, MAX_SEED + 1, 0.5)),
        *(("ignore_eos", value) for value in (1, "yes")),
        *(("stop_token_ids", value) for value in (3, "3", (-1,), (VOCABULARY,), (1.0,))),
        *(("logit_bias", {token: 0.0}) for token in (-1, VOCABULARY, "1", True)),
        *(("logit_bias", {1: value}) for value in (math.nan, math.inf, 1e39, "2", None)),
        ("logit_bias", [1.0]),
        ("logit_bias", dict.fromkeys(range(VOCABULARY), -math.inf)),
    ],
)
def test_wrong_values_are_named(name: str, value: Any) -> None:
    reason = validate(SamplingParams(**{name: value}), VOCABULARY)
    assert reason is not None
    assert name in reason
    assert "\n" not in reason
