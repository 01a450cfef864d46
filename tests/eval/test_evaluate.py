from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer.engine.api import EngineConfig, PrefillMode
from deepinfer.engine.errors import InputError, RunError
from deepinfer.eval.evaluate import EvalConfig, evaluate
from deepinfer.eval.figures import EvalResult
from deepinfer.eval.stored_run import read_run
from deepinfer.eval.tokenizer import TextTokenizer

TEXT = "It is a truth universally acknowledged, that a single man must be in want of a wife. " * 3
Make = Callable[..., Any]
Write = Callable[..., Path]


def run(scorer: Any, path: Path | str, *policies: str, **options: Any) -> EvalResult:
    return evaluate(scorer, EvalConfig(workloads=(str(path),), policies=policies, **options))


@pytest.mark.parametrize("workload", ["prose", "unicode", "longctx"])
def test_the_windows_are_those_of_the_published_reference(
    make_scorer: Make, mini_dir: Path, workload: str
) -> None:
    """First 4096 tokens, begin token apart, disjoint windows of 512: as many scored tokens, text by text."""
    reference = json.loads((mini_dir / "ppl_reference.json").read_text())["workloads"][workload]
    (corpus,) = run(make_scorer(), workload, "disjoint:512", max_tokens=4096).corpora
    found = {line.sample_id: line.figures.num_tokens for line in corpus.samples if line.figures}
    assert found == {entry["id"]: entry["scored_tokens"] for entry in reference["per_document"]}


def test_every_policy_sums_the_log_probabilities_of_its_own_windows(
    make_scorer: Make, fake_logprobs: Make, write_texts: Write, mini_dir: Path
) -> None:
    """Sums recomputed here from the ids by hand; a missing shift, begin token or window moves them."""
    result = run(make_scorer(), write_texts(TEXT), "disjoint:16", "strided:16:8", "half:16", "document")
    ids = TextTokenizer(mini_dir, 0, 4096).encode(TEXT, "test").token_ids.tolist()
    assert ids[0] == 0
    assert ids.count(0) == 1

    def nll(window: list[int], first: int) -> list[float]:
        return [-float(value) for value in fake_logprobs(window)[first:]]

    disjoint = [v for start in range(0, len(ids), 16) for v in nll(ids[start : start + 16], 1)]
    strided = nll(ids[:16], 1)
    for start in range(8, len(ids), 8):
        if start + 8 < len(ids):
            strided += nll(ids[start : start + 16], 8)
    half = [v for start in range(0, len(ids) - 15, 16) for v in nll([0, *ids[start + 1 : start + 16]], 9)]
    expected = [disjoint, strided, half, nll(ids, 1)]
    for corpus, values in zip(result.corpora, expected, strict=True):
        assert corpus.figures is not None
        assert corpus.figures.nll_sum == math.fsum(values)
        assert corpus.figures.mean_nll is not None
        assert corpus.figures.mean_nll.num_tokens == len(values)


def test_each_figure_carries_its_labels_and_policies_are_not_merged(
    make_scorer: Make, write_texts: Write
) -> None:
    result = run(make_scorer(), write_texts(TEXT, TEXT + "More."), "disjoint:16", "document").to_dict()
    assert [(c["workload"], c["policy"]) for c in result["corpora"]] == [
        ("small", "disjoint:16"),
        ("small", "document"),
    ]
    for corpus in result["corpora"]:
        assert (corpus["profile"], corpus["prefill"]) == ("strict", "off")
        assert corpus["checkpoint"] == make_scorer().checkpoint_digest
        assert float.fromhex(corpus["nll_sum_hex"]) == corpus["nll_sum"]
        assert corpus["num_tokens"] == sum(sample["num_tokens"] for sample in corpus["samples"])
    assert result["corpora"][0]["num_tokens"] < result["corpora"][1]["num_tokens"]
    assert result["verdict"] == "measured"
    json.dumps(result, allow_nan=False)


def test_bytes_and_words_are_those_of_the_original_text(make_scorer: Make, write_texts: Write) -> None:
    text = " Déjà  vu\r\n\r\n漢字 e\u0301 \n"
    (corpus,) = run(make_scorer(), write_texts(text), "document").to_dict()["corpora"]
    assert (corpus["num_bytes"], corpus["num_words"]) == (len(text.encode()), 5)


def test_a_truncated_text_is_divided_by_what_was_kept(make_scorer: Make, write_texts: Write) -> None:
    path = write_texts(TEXT)
    (whole,) = run(make_scorer(), path, "document").to_dict()["corpora"]
    (cut,) = run(make_scorer(), path, "document", max_tokens=10).to_dict()["corpora"]
    assert cut["num_tokens"] == 10
    assert 0 < cut["num_bytes"] < whole["num_bytes"] / 4
    assert 0 < cut["num_words"] < whole["num_words"] / 4
    assert cut["samples"][0]["num_dropped"] == whole["num_tokens"] - 10


def test_texts_of_other_lengths_in_the_run_add_no_padding(make_scorer: Make, write_texts: Write) -> None:
    short, long = "Hi.", TEXT
    both = run(make_scorer(), write_texts(short, long), "document").corpora[0]
    alone = [run(make_scorer(), write_texts(text), "document").corpora[0] for text in (short, long)]
    assert [line.figures.nll_sum for line in both.samples if line.figures] == [
        one.figures.nll_sum for one in alone if one.figures
    ]


def test_a_run_that_scores_nothing_is_inconclusive(make_scorer: Make, write_texts: Write) -> None:
    result = run(make_scorer(), write_texts("a"), "half:16")
    assert (result.exit_code, result.verdict) == (5, "inconclusive")
    assert run(make_scorer(), write_texts(TEXT), "half:16").exit_code == 0


def test_a_document_of_one_token_is_scored_and_one_too_short_for_a_policy_is_shown(
    make_scorer: Make, write_texts: Write
) -> None:
    result = run(make_scorer(), write_texts("a", TEXT), "document", "half:16")
    whole = result.corpora[0].samples[0].figures
    assert whole is not None
    assert whole.num_tokens == 1
    half = result.corpora[1]
    assert [line.figures.num_tokens > 0 for line in half.samples if line.figures] == [False, True]
    assert half.figures is not None
    assert half.figures.mean_nll is not None
    assert half.figures.mean_nll.num_documents == 1
    assert result.exit_code == 0


def test_a_failing_request_fails_its_document_and_no_other(make_scorer: Make, write_texts: Write) -> None:
    path = write_texts(TEXT, TEXT + " <", TEXT)
    ids = TextTokenizer(make_scorer().model_dir, 0, 4096).encode(" <", "test").token_ids
    result = run(make_scorer(fail_ids=frozenset({int(ids[-1])})), path, "disjoint:16")
    (corpus,) = result.corpora
    assert [line.problem for line in corpus.samples] == [None, "a token this engine refuses", None]
    assert corpus.figures is not None
    assert corpus.figures.mean_nll is not None
    assert corpus.figures.mean_nll.num_documents == 2
    assert result.exit_code == 2


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_log_probability_that_is_not_finite_ends_inconclusive(
    make_scorer: Make, write_texts: Write, tmp_path: Path, value: float
) -> None:
    path = write_texts(TEXT, TEXT + " <")
    token = int(TextTokenizer(make_scorer().model_dir, 0, 4096).encode(" <", "test").token_ids[-1])
    result = run(make_scorer(override={token: value}), path, "document", out=tmp_path / "run")
    (corpus,) = result.corpora
    assert corpus.figures is None, "no figure, in place of one without that document"
    assert corpus.samples[0].figures is not None
    assert "sample 'doc-1', policy document, position" in str(corpus.samples[1].problem)
    assert (result.exit_code, result.verdict) == (5, "inconclusive")
    stored = read_run(tmp_path / "run").rows("doc-1", "document")
    assert str(float(stored.logprob[stored.token_id == token][0])) == str(value), (
        "the run keeps it to look at"
    )


def test_holes_of_truncated_prefill_are_not_divided_by(make_scorer: Make, write_texts: Write) -> None:
    config = EngineConfig(prefill=PrefillMode.COMPACT, keep=8)
    scorer = make_scorer(config=config, num_hidden=20)
    (corpus,) = run(scorer, write_texts(TEXT), "document").to_dict()["corpora"]
    num_ids = len(TextTokenizer(scorer.model_dir, 0, 4096).encode(TEXT, "test").token_ids)
    assert corpus["num_tokens"] == num_ids - 20
    assert corpus["num_bytes"] < len(TEXT)
    assert corpus["word_perplexity"] is None
    assert corpus["prefill"] == "compact"


def test_a_window_longer_than_the_model_takes_is_refused(make_scorer: Make, write_texts: Write) -> None:
    path = write_texts("short", TEXT)
    with pytest.raises(InputError, match=r"policy disjoint:64: the model takes 32 ids at most"):
        run(make_scorer(max_context=32), path, "disjoint:64")
    with pytest.raises(InputError, match=r"sample 'doc-1': \d+ ids are more than the 32 .* --max-tokens 31"):
        run(make_scorer(max_context=32), path, "document")
    assert run(make_scorer(max_context=32), path, "document", max_tokens=31).exit_code == 0


def test_a_finished_run_is_read_not_scored_again(
    make_scorer: Make, write_texts: Write, tmp_path: Path
) -> None:
    path = write_texts(TEXT)
    first = run(make_scorer(), path, "document", out=tmp_path / "run")
    again = make_scorer()
    assert run(again, path, "document", out=tmp_path / "run").to_dict() == first.to_dict()
    assert again.seen == []
    assert read_run(tmp_path / "run").manifest["result"] == first.to_dict()


@pytest.mark.parametrize(
    ("fields", "options", "key"),
    [
        ({"checkpoint_digest": "another"}, {}, "checkpoint"),
        ({"config": EngineConfig(prefill=PrefillMode.MASK)}, {}, "prefill"),
        ({}, {"max_tokens": 5}, "max_tokens"),
    ],
    ids=["another model", "another prefill", "another truncation"],
)
def test_stored_rows_of_another_question_are_never_used(
    make_scorer: Make,
    write_texts: Write,
    tmp_path: Path,
    fields: dict[str, Any],
    options: dict[str, Any],
    key: str,
) -> None:
    path = write_texts(TEXT)
    run(make_scorer(), path, "document", out=tmp_path / "run")
    with pytest.raises(RunError, match=rf"holds a run of another configuration \({key}: "):
        run(make_scorer(**fields), path, "document", out=tmp_path / "run", **options)


def test_threads_and_batch_size_are_no_part_of_the_question(
    make_scorer: Make, write_texts: Write, tmp_path: Path
) -> None:
    path = write_texts(TEXT)
    run(make_scorer(), path, "document", out=tmp_path / "run")
    config = EngineConfig(num_threads=1, max_batch_tokens=64)
    run(make_scorer(config=config), path, "document", out=tmp_path / "run")


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(5)))
def test_the_order_of_documents_moves_no_figure(
    make_scorer: Make, write_texts: Write, order: list[int]
) -> None:
    texts = {f"t{index}": TEXT[index * 7 :] for index in range(5)}
    given_order = run(make_scorer(), write_texts(**texts), "strided:16:8").to_dict()["corpora"][0]
    shuffled = run(make_scorer(), write_texts(**{f"t{i}": texts[f"t{i}"] for i in order}), "strided:16:8")
    found = shuffled.to_dict()["corpora"][0]
    found["samples"].sort(key=lambda sample: sample["sample_id"])
    assert found == given_order


def test_progress_reaches_its_total(make_scorer: Make, write_texts: Write) -> None:
    calls: list[tuple[str, int, int]] = []
    evaluate(
        make_scorer(),
        EvalConfig(workloads=(str(write_texts(TEXT, TEXT)),), policies=("disjoint:16",)),
        lambda what, done, total: calls.append((what, done, total)),
    )
    assert calls[-1][1] == calls[-1][2] > 0
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
