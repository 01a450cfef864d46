"""When a sequence ends, and why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deepinfer.engine.api import FinishReason, SamplingParams
from deepinfer.engine.stopping import StopText, finish_reason

EOS = 1


def reason(
    params: SamplingParams,
    output: Sequence[int],
    prompt: int = 10,
    longest: int = 1000,
    stop_text: StopText | None = None,
) -> FinishReason | None:
    return finish_reason(params, prompt, output, eos_token_id=EOS, max_model_len=longest, stop_text=stop_text)


def test_the_end_token_stops_unless_it_is_ignored() -> None:
    assert reason(SamplingParams(), [5, EOS]) is FinishReason.STOP
    assert reason(SamplingParams(ignore_eos=True), [5, EOS]) is None
    assert reason(SamplingParams(), [EOS, 5]) is None, "only the last token counts"


def test_stop_ids_stop_even_when_the_end_token_is_ignored() -> None:
    params = SamplingParams(stop_token_ids=(7, 8), ignore_eos=True)
    assert reason(params, [5, 8]) is FinishReason.STOP
    assert reason(params, [8, 5]) is None
    assert reason(SamplingParams(stop_token_ids=(EOS,), ignore_eos=True), [EOS]) is FinishReason.STOP


@pytest.mark.parametrize(("count", "ended"), [(1, False), (2, False), (3, True)])
def test_max_tokens_is_the_number_of_tokens_generated(count: int, ended: bool) -> None:
    found = reason(SamplingParams(max_tokens=3), [5] * count)
    assert found == (FinishReason.LENGTH if ended else None)


@pytest.mark.parametrize(("prompt", "count", "ended"), [(18, 2, False), (18, 3, True), (20, 1, True)])
def test_the_token_after_the_last_readable_position_ends_a_sequence(
    prompt: int, count: int, ended: bool
) -> None:
    found = reason(SamplingParams(max_tokens=100), [5] * count, prompt, longest=20)
    assert found == (FinishReason.LENGTH if ended else None)


def test_a_stop_at_the_last_allowed_token_is_a_stop() -> None:
    assert reason(SamplingParams(max_tokens=2), [5, EOS]) is FinishReason.STOP
    assert reason(SamplingParams(max_tokens=2), [5, 6], stop_text=lambda _: True) is FinishReason.STOP


def test_stop_text_sees_all_generated_tokens_and_is_spared_when_an_id_has_stopped() -> None:
    seen: list[list[int]] = []

    def spells(ids: Sequence[int]) -> bool:
        seen.append(list(ids))
        return list(ids[-2:]) == [3, 4]

    params = SamplingParams()
    assert reason(params, [3], stop_text=spells) is None
    assert reason(params, [3, 4], stop_text=spells) is FinishReason.STOP
    assert reason(params, [3, 4, EOS], stop_text=spells) is FinishReason.STOP
    assert seen == [[3], [3, 4]]
