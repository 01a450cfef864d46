from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.eval.compare import compare_runs
from deepinfer.eval.evaluate import EvalConfig, evaluate
from deepinfer.eval.report import render_comparison, render_eval, render_score, render_table
from deepinfer.eval.score import ScoreConfig, score_file

Make = Callable[..., Any]
Write = Callable[..., Path]
TEXT = "Call me Ishmael. Some years ago, never mind how long precisely. " * 4


def test_numbers_stand_right_and_names_left() -> None:
    assert render_table(("name", "n"), [["a", "10"], ["longer", "7"]]) == [
        "name     n",
        "a       10",
        "longer   7",
    ]


def test_every_line_of_an_evaluation_is_labelled(
    make_scorer: Make, write_texts: Write, tmp_path: Path
) -> None:
    path = write_texts(TEXT, "漢字\r\n" * 9)
    config = EvalConfig(
        workloads=(str(path),), policies=("disjoint:16", "document"), max_tokens=20, out=tmp_path / "run"
    )
    lines = render_eval(evaluate(make_scorer(), config)).splitlines()
    for label in ("checkpoint c0ffeec0ffee", "profile strict", "prefill off", "cache released"):
        assert label in lines[0]
    assert "first 20 tokens of each text" in lines[0]
    assert any(line.startswith("note: 1 document(s) with CRLF") for line in lines)
    assert "small, policy disjoint:16" in lines
    assert any("2 documents truncated" in line for line in lines)
    corpora = [line.split() for line in lines if line.startswith("small ")]
    assert [cells[:3] for cells in corpora] == [["small", "disjoint:16", "2"], ["small", "document", "2"]]
    assert corpora[0][4] == "-", "no words where tokens are left out"
    assert corpora[1][4] != "-"
    assert any("Fewer than 8 documents" in line for line in lines)
    assert lines[-1] == f"run: {tmp_path / 'run'}"


def test_a_document_without_figures_says_why(make_scorer: Make, write_texts: Write) -> None:
    ids = make_scorer()
    config = EvalConfig(workloads=(str(write_texts(TEXT, "x")),), policies=("document",))
    probe = evaluate(ids, config)
    assert probe.exit_code == 0
    token = ids.seen[-1].token_ids[1]
    text = render_eval(evaluate(make_scorer(override={token: math.nan}), config))
    assert "doc-1: sample 'doc-1', policy document, position 1: log-probability is nan" in text
    corpus = next(line for line in text.splitlines() if line.startswith("small "))
    assert "not finite" in corpus
    text = render_eval(evaluate(make_scorer(fail_ids=frozenset({token})), config))
    assert "doc-1: a token this engine refuses" in text


def test_a_scoring_names_each_sample_that_has_no_number(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    scorer = make_scorer(fail_ids=frozenset({13}), override={14: math.nan})
    tokens = write_tokens(a=[0, 5], b=[0, 13], c=[0, 14])
    text = render_score(score_file(scorer, ScoreConfig(tokens=tokens, out=tmp_path / "run")))
    assert text.splitlines() == [
        f"scored 2 tokens of 3 samples into {tmp_path / 'run'}",
        "failed: sample 'b': a token this engine refuses",
        "not finite: sample 'c' has a NaN or infinite log-probability",
    ]


def test_a_token_scored_in_one_run_only_is_called_that(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    tokens = write_tokens(a=[0, 5, 6, 7])
    for name, num_hidden in (("a", 1), ("b", 3)):
        score_file(make_scorer(num_hidden=num_hidden), ScoreConfig(tokens=tokens, out=tmp_path / name))
    text = render_comparison(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert "first difference: sample 'a', position 1, token 5: scored in A only" in text
    assert "1 tokens scored in both, 2 in one only, 2 rows differ" in text


def test_a_comparison_starts_with_its_verdict_and_shows_the_first_difference(
    make_scorer: Make, write_tokens: Write, tmp_path: Path
) -> None:
    tokens = write_tokens(a=[0, 5, 6], b=[0, 7, 8])
    value = np.float32(-1.5)
    for name, override in (("a", value), ("b", np.nextafter(value, np.float32(0)))):
        scorer = make_scorer(override={8: override})
        score_file(scorer, ScoreConfig(tokens=tokens, out=tmp_path / name))
    lines = render_comparison(compare_runs(tmp_path / "a", tmp_path / "b")).splitlines()
    assert lines[0] == "different: policy document: 1 rows differ"
    assert any(
        "sample 'b', position 2, token 8: logprob -1.5 (0xbfc00000) in A, -1.49999988 (0xbfbfffff) in B, "
        "1 ULP apart" in line
        for line in lines
    )
    assert any("nats/token ±" in line and "perplexity ratio 0.9999999" in line for line in lines)
    assert lines[-1] == "  tokens by distance in ULP: 1: 1"
