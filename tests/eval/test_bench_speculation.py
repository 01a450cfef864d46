"""The clock of ``bench --speculation`` runs while tokens are decoded, not while prompts are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from deepinfer.engine.api import GenerateRequest, SamplingParams, TokenRecord
from deepinfer.engine.llm import LLM
from deepinfer.eval import bench_speculation
from deepinfer.eval.bench_speculation import Group, answers


class _Talker:
    """Says ``script``: (seconds that pass, whose token)."""

    def __init__(self, script: list[tuple[float, str]]) -> None:
        self.script, self.now = script, 100.0

    def generate_iter(self, requests: object) -> Iterator[TokenRecord]:
        for position, (seconds, name) in enumerate(self.script):
            self.now += seconds
            yield TokenRecord(
                request_id=name,
                sample_index=0,
                token_id=7,
                position=position,
                raw_logprob=-1.0,
                processed_logprob=-1.0,
            )


def _heard(script: list[tuple[float, str]], monkeypatch: pytest.MonkeyPatch) -> bench_speculation.Answers:
    talker = _Talker(script)
    monkeypatch.setattr(bench_speculation.time, "perf_counter", lambda: talker.now)
    names = sorted({name for _, name in script})
    params = SamplingParams(max_tokens=8)
    asked = [GenerateRequest(request_id=name, token_ids=[4, 5], params=params) for name in names]
    return answers(cast(LLM, talker), asked)


def test_a_long_prompt_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    said = _heard([(50.0, "a"), (1.0, "a"), (1.0, "a")], monkeypatch)
    assert (said.num_decoded, said.seconds) == (2, 2.0)


def test_the_clock_starts_when_the_last_prompt_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    said = _heard([(5.0, "a"), (1.0, "a"), (30.0, "b"), (1.0, "a"), (1.0, "b"), (1.0, "b")], monkeypatch)
    assert (said.num_decoded, said.seconds) == (3, 3.0)
    assert {name: len(records) for name, records in said.records.items()} == {"a": 3, "b": 3}


def test_speedup_is_the_ratio_of_decoding_speeds() -> None:
    group = Group(num_tokens={"plain": 20, "fixed": 18}, seconds={"plain": 10.0, "fixed": 6.0})
    assert group.speedup("fixed") == 1.5
