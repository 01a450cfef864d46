"""Generation from outside the engine: order, failures in their place, seeds, JSON. The engine is a fake."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from deepinfer.engine.api import FinishReason, GenerateRequest, RequestFailure, SamplingParams, TokenRecord
from deepinfer.engine.bundled import bundled_model_dir
from deepinfer.engine.errors import InputError
from deepinfer.eval.detokenizer import StopStrings
from deepinfer.eval.generate import Sample, TextPiece, generate, in_order, with_seed
from deepinfer.eval.generation_report import exit_code, render_heading, render_logprobs
from deepinfer.eval.prompts import Prompt, file_prompt, text_prompt, token_prompts
from deepinfer.eval.tokenizer import TextTokenizer

TOKENIZER = TextTokenizer(bundled_model_dir(), bos_token_id=0, vocab_size=4096)
NO_STOPS = StopStrings(())


class FakeSource:
    """Says the prompt again, token by token, round-robin over the samples; sample i stops i tokens early."""

    def generate_iter(self, requests: Sequence[GenerateRequest]) -> Iterator[TokenRecord | RequestFailure]:
        live = []
        for request in requests:
            if len(request.token_ids) == 1:
                yield RequestFailure(request_id=request.request_id, reason=f"{request.request_id}: too short")
                continue
            live += [(request, index) for index in range(request.params.n)]
        emitted: dict[tuple[str, int], list[int]] = {(r.request_id, i): [] for r, i in live}
        while live:
            for request, index in list(live):
                ids = emitted[request.request_id, index]
                ids.append(request.token_ids[1 + len(ids)])
                stopped = request.should_stop is not None and request.should_stop(ids)
                ended = stopped or len(ids) == len(request.token_ids) - 1 - index
                if ended:
                    live.remove((request, index))
                reason = FinishReason.STOP if stopped else FinishReason.LENGTH
                yield TokenRecord(
                    request_id=request.request_id,
                    sample_index=index,
                    token_id=ids[-1],
                    position=len(request.token_ids) + len(ids) - 1,
                    raw_logprob=-0.5,
                    processed_logprob=-0.25,
                    top_ids=(ids[-1], 5)[: request.params.num_logprobs],
                    top_logprobs=(-0.5, -1.5)[: request.params.num_logprobs],
                    finish_reason=reason if ended else "",
                )


def prompt_of(text: str, name: str) -> Prompt:
    return replace(text_prompt(text, "prompt", TOKENIZER), prompt_id=name)


def events_of(
    prompts: list[Prompt], params: SamplingParams, stops: StopStrings = NO_STOPS
) -> list[TextPiece | Sample | RequestFailure]:
    return list(generate(FakeSource(), prompts, params, stops, TOKENIZER, 4096))


def test_pieces_add_up_to_the_text_of_their_sample() -> None:
    events = events_of([prompt_of("to be the hero", "a"), prompt_of("héro", "b")], SamplingParams())
    for sample in (event for event in events if isinstance(event, Sample)):
        pieces = [e.text for e in events if isinstance(e, TextPiece) and e.prompt_id == sample.prompt_id]
        assert "".join(pieces) == sample.text
        assert "" not in pieces
    assert {e.prompt_id: e.text for e in events if isinstance(e, Sample)} == {
        "a": "to be the hero",
        "b": "héro",
    }


def test_outcomes_keep_the_order_of_prompts_and_samples() -> None:
    prompts = [
        prompt_of("a long prompt that ends late", "late"),
        prompt_of("", "refused"),
        prompt_of("a b c d", "early"),
    ]
    params = SamplingParams(n=3)
    events = events_of(prompts, params)
    by_end = [(e.prompt_id, e.sample_index) for e in events if isinstance(e, Sample)]
    ordered = list(in_order(events, prompts, params.n))
    wanted = [("late", 0), ("late", 1), ("late", 2), ("early", 0), ("early", 1), ("early", 2)]
    assert [(e.prompt_id, e.sample_index) for e in ordered if isinstance(e, Sample)] == wanted != by_end
    assert ordered[3] == RequestFailure(request_id="refused", reason="refused: too short")
    assert len(ordered) == 7
    assert exit_code(ordered) == 2
    assert exit_code(ordered[:3]) == 0


def test_an_outcome_does_not_wait_for_those_behind_it() -> None:
    prompts = [prompt_of("a b", "short"), prompt_of("a long prompt that ends late", "long")]
    seen = []

    def watched() -> Iterator[TextPiece | Sample | RequestFailure]:
        for event in events_of(prompts, SamplingParams()):
            seen.append(event)
            yield event

    first = next(in_order(watched(), prompts, 1))
    assert isinstance(first, Sample)
    assert first.prompt_id == "short"
    assert not any(isinstance(event, Sample) and event.prompt_id == "long" for event in seen)


def test_a_stop_string_cuts_the_text_and_leaves_the_ids_whole() -> None:
    prompt = prompt_of("to be the hero of my life", "a")
    stops = StopStrings((" hero",))
    [sample] = in_order(events_of([prompt], SamplingParams(), stops), [prompt], 1)
    assert isinstance(sample, Sample)
    assert sample.text == "to be the"
    assert sample.finish_reason == "stop"
    emitted = b"".join(TOKENIZER.bytes_of(record.token_id or 0) for record in sample.records)
    assert emitted.startswith(b"to be the hero")


def test_a_sample_without_a_token_is_empty_and_says_why() -> None:
    class Aborting:
        def generate_iter(self, requests: Sequence[GenerateRequest]) -> Iterator[TokenRecord]:
            yield TokenRecord(
                request_id="a",
                sample_index=0,
                token_id=None,
                position=3,
                raw_logprob=math.nan,
                processed_logprob=math.nan,
                finish_reason=FinishReason.PROMPT_LENGTH_EXCEEDED,
            )

    prompt = prompt_of("to be", "a")
    [sample] = generate(Aborting(), [prompt], SamplingParams(), NO_STOPS, TOKENIZER, 4096)
    assert isinstance(sample, Sample)
    assert (sample.text, sample.records, sample.finish_reason) == ("", (), "prompt_length_exceeded")


def test_logprobs_survive_json_bit_for_bit() -> None:
    [sample] = [
        e
        for e in events_of([prompt_of("to be", "a")], SamplingParams(num_logprobs=2))
        if isinstance(e, Sample)
    ]
    odd = sample.records[0]._replace(raw_logprob=-1.100000023841858, processed_logprob=math.nan)
    found = json.loads(json.dumps(replace(sample, records=(odd,)).to_dict(seed=7), allow_nan=False))
    assert found["raw_logprobs"] == [-1.100000023841858]
    assert found["processed_logprobs"] == [None]
    assert found["seed"] == 7
    assert found["tops"] == [
        [{"token_id": odd.token_id, "raw_logprob": -0.5}, {"token_id": 5, "raw_logprob": -1.5}]
    ]


def test_the_table_spells_tokens() -> None:
    [sample] = [e for e in events_of([prompt_of("to\n", "a")], SamplingParams()) if isinstance(e, Sample)]
    assert render_heading(sample) == f"== a, sample 0 (length, {len(sample.records)} tokens)"
    table = render_logprobs(sample, TOKENIZER).splitlines()
    assert table[0].split() == ["position", "id", "raw", "processed", "token"]
    assert table[-1].endswith(r"-0.5000    -0.2500   '\n'")


def test_a_seed_is_drawn_once_and_kept_if_given() -> None:
    assert with_seed(SamplingParams(seed=5)) == SamplingParams(seed=5)
    drawn = {with_seed(SamplingParams()).seed for _ in range(8)}
    assert len(drawn) == 8
    assert all(seed is not None and 0 <= seed < 2**53 for seed in drawn)


def test_impossible_parameters_run_nothing() -> None:
    with pytest.raises(InputError, match="top_p is 2"):
        events_of([prompt_of("a", "a")], SamplingParams(top_p=2.0))


def test_prompts_are_read_as_they_stand(tmp_path: Path) -> None:
    assert text_prompt("", "prompt", TOKENIZER).token_ids == (0,)
    assert file_prompt(b"a\r\n", "f", TOKENIZER).text == "a\r\n"
    path = tmp_path / "ids.jsonl"
    path.write_text('{"id": "a", "token_ids": [5, 6]}\n{"id": "b", "token_ids": [0]}\n')
    assert token_prompts(path, 4096) == [
        Prompt(prompt_id="a", token_ids=(5, 6)),
        Prompt(prompt_id="b", token_ids=(0,)),
    ]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "f: is empty"),
        (b"a\xff", "f: invalid UTF-8 at byte 1"),
        (b"\xef\xbb\xbfa", "f: starts with a byte order mark"),
        (b"a<|end_of_sentence|>", "f: text holds the special token"),
    ],
    ids=["empty", "utf8", "bom", "special"],
)
def test_a_prompt_file_that_is_no_text_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        file_prompt(raw, "f", TOKENIZER)


def test_a_lone_surrogate_in_a_prompt_is_refused() -> None:
    with pytest.raises(InputError, match="prompt: not valid UTF-8 at character 1"):
        text_prompt("a\udcff", "prompt", TOKENIZER)
