from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from deepinfer.engine.errors import InputError
from deepinfer.eval.score import ScoreConfig, score_file
from deepinfer.eval.stored_run import read_run

Make = Callable[..., Any]
Write = Callable[..., Path]


def score(scorer: Any, tokens: Path, out: Path, **options: Any) -> Any:
    return score_file(scorer, ScoreConfig(tokens=tokens, out=out, **options))


def test_given_ids_are_scored_as_they_stand(
    make_scorer: Make, fake_logprobs: Make, write_tokens: Write, tmp_path: Path
) -> None:
    """No begin token is added where one is, nor where none is."""
    scorer = make_scorer()
    report = score(scorer, write_tokens(a=[0, 5, 6, 7], b=[9, 8]), tmp_path / "run")
    assert [request.token_ids for request in scorer.seen] == [[0, 5, 6, 7], [9, 8]]
    assert (report.num_samples, report.num_scored_tokens, report.exit_code) == (2, 4, 0)
    rows = read_run(tmp_path / "run").rows("a", "document")
    assert rows.token_id.tolist() == [0, 5, 6, 7]
    assert rows.valid.tolist() == [False, True, True, True]
    assert rows.logprob[1:].tolist() == fake_logprobs([0, 5, 6, 7])[1:].tolist()
    assert rows.window_id.tolist() == [-1, 0, 0, 0]


def test_a_single_id_has_a_row_and_no_log_probability(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    report = score(make_scorer(), write_tokens(a=[5]), tmp_path / "run", logits=tmp_path / "l.safetensors")
    assert (report.num_scored_tokens, report.exit_code) == (0, 0)
    assert read_run(tmp_path / "run").rows("a", "document").valid.tolist() == [False]
    assert load_file(tmp_path / "l.safetensors")["a"].shape == (1, 4096)


def test_most_likely_tokens_are_stored_on_request(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    score(make_scorer(), write_tokens(a=[0, 5, 6]), tmp_path / "run", num_top=3)
    rows = read_run(tmp_path / "run").rows("a", "document")
    assert rows.top_ids is not None
    assert rows.top_ids.tolist() == [[-1, -1, -1], [0, 1, 2], [0, 1, 2]]
    with pytest.raises(InputError, match="num_top 4097 must be from 0 to the 4096 ids"):
        score(make_scorer(), write_tokens(a=[0, 5]), tmp_path / "other", num_top=4097)


def test_a_failing_sample_stays_in_its_place_and_harms_no_other(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    tokens = write_tokens(a=[0, 5], bad=[0, 13], c=[0, 6])
    logits = tmp_path / "l.safetensors"
    report = score(make_scorer(fail_ids=frozenset({13})), tokens, tmp_path / "run", logits=logits)
    assert report.failures == {"bad": "a token this engine refuses"}
    assert report.exit_code == 2
    run = read_run(tmp_path / "run")
    assert [(name, outcome.failure is None) for name, outcome in run.outcomes.items()] == [
        ("a", True),
        ("bad", False),
        ("c", True),
    ]
    assert sorted(load_file(logits)) == ["a", "c"]


def test_a_log_probability_that_is_not_finite_ends_with_5(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    report = score(make_scorer(override={6: -np.inf}), write_tokens(a=[0, 5], b=[0, 6]), tmp_path / "run")
    assert report.non_finite == ("b",)
    assert report.exit_code == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "b", "token_ids": [0, 4096]}', r"token_ids\[1\] is 4096, outside the model's 0 to 4095"),
        ('{"id": "b", "token_ids": [-1]}', r"token_ids\[0\] is -1, outside"),
        ('{"id": "b", "token_ids": [0, 1.5]}', r"token_ids\[1\] is 1.5; write an integer"),
        ('{"id": "b", "token_ids": [true]}', r"token_ids\[0\] is True; write an integer"),
        ('{"id": "b", "token_ids": []}', "must be a list of at least one integer"),
        ('{"id": "b", "token_ids": "5"}', "must be a list of at least one integer"),
        ('{"id": "a", "token_ids": [5]}', "id 'a' was given at"),
        ('{"id": "b", "token_ids": [5], "text": "x"}', "unknown field 'text'"),
        ('{"id": "b"}', "field 'token_ids' is missing"),
        ("nonsense", "bad JSON at column 1"),
    ],
)
def test_a_bad_line_is_refused_by_number_before_anything_is_run(
    make_scorer: Make, tmp_path: Path, line: str, message: str
) -> None:
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text('{"id": "a", "token_ids": [0, 5]}\n' + line + "\n")
    scorer = make_scorer()
    with pytest.raises(InputError, match=rf"tokens.jsonl:2: .*{message}"):
        score(scorer, tokens, tmp_path / "run")
    assert scorer.seen == []
    assert not (tmp_path / "run").exists()


def test_row_p_of_the_logits_predicts_position_p_plus_1(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    path = tmp_path / "logits.safetensors"
    score(make_scorer(vocab_size=10), write_tokens(a=[0, 5, 6], b=[3, 4]), tmp_path / "run", logits=path)
    tensors = load_file(path)
    assert {name: (t.shape, str(t.dtype)) for name, t in tensors.items()} == {
        "a": ((3, 10), "float32"),
        "b": ((2, 10), "float32"),
    }
    # the fake engine's row that predicts a token starts with that token's id; the last row is -5
    assert tensors["a"][:, 0].tolist() == [5.0, 6.0, -5.0]
    assert tensors["b"][:, 0].tolist() == [4.0, -5.0]


def test_logits_of_a_finished_run_are_computed_without_changing_it(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    tokens = write_tokens(a=[0, 5, 6])
    score(make_scorer(), tokens, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    score(make_scorer(), tokens, tmp_path / "run", logits=tmp_path / "l.safetensors")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert load_file(tmp_path / "l.safetensors")["a"].shape == (3, 4096)


def test_other_ids_under_the_same_names_are_another_run(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    score(make_scorer(), write_tokens(a=[0, 5]), tmp_path / "run")
    with pytest.raises(ValueError, match=r"another configuration \(tokens: "):
        score(make_scorer(), write_tokens(a=[0, 6]), tmp_path / "run")
