"""The mistakes of evaluation.md section 1.3 that a divisor or an average can make."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deepinfer.engine.errors import NonFiniteError
from deepinfer.eval.perplexity import DocumentFigures, corpus_figures, document_figures
from deepinfer.eval.rows import SampleRows, blank_rows


def rows_of(logprobs: list[float], scored: list[int] | None = None) -> SampleRows:
    """Rows of a document; position 0 is the begin token."""
    rows = blank_rows("doc", "document", np.arange(len(logprobs), dtype=np.int32), num_top=0)
    for position in range(1, len(logprobs)) if scored is None else scored:
        rows.logprob[position] = logprobs[position]
        rows.valid[position] = True
    return rows


def bytes_of(*counts: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(counts, dtype=np.int32)


def figures(
    num_tokens: int, nll_sum: float, num_bytes: int = 1, num_words: int | None = 1
) -> DocumentFigures:
    return DocumentFigures(
        sample_id="x", num_tokens=num_tokens, nll_sum=nll_sum, num_bytes=num_bytes, num_words=num_words
    )


def test_the_four_figures_of_one_text_follow_their_formulas() -> None:
    found = document_figures(rows_of([9.0, -1.0, -2.0, -4.5]), bytes_of(0, 3, 4, 5), "two words!!!")
    assert (found.num_tokens, found.nll_sum, found.num_bytes, found.num_words) == (3, 7.5, 12, 2)
    corpus = corpus_figures([found])
    assert corpus.token_perplexity == math.exp(7.5 / 3)
    assert corpus.word_perplexity == math.exp(7.5 / 2)
    assert corpus.byte_perplexity == math.exp(7.5 / 12)
    assert corpus.bits_per_byte == 7.5 / (12 * math.log(2))


def test_the_begin_token_adds_neither_nats_nor_a_token() -> None:
    """Position 0 holds a number here that would be seen if it entered."""
    found = document_figures(rows_of([-100.0, -1.0]), bytes_of(0, 1), "x")
    assert (found.num_tokens, found.nll_sum) == (1, 1.0)


def test_unscored_tokens_add_neither_bytes_nor_tokens_and_leave_no_words() -> None:
    """Holes of a window policy or of truncated prefill: the whole text as divisor would flatter."""
    found = document_figures(rows_of([0, -1.0, -7.0, -2.0], scored=[1, 3]), bytes_of(0, 5, 50, 5), "a b")
    assert (found.num_tokens, found.nll_sum, found.num_bytes, found.num_words) == (2, 3.0, 10, None)
    assert corpus_figures([found]).word_perplexity is None
    assert corpus_figures([found]).byte_perplexity == math.exp(3.0 / 10)


def test_a_truncated_text_counts_the_bytes_and_words_that_were_kept() -> None:
    text = "one two three four"
    found = document_figures(rows_of([0, -1.0, -1.0]), bytes_of(0, 3, 6), text)
    assert (found.num_bytes, found.num_words) == (9, 3), "'one two t': the cut word counts"


def test_a_character_cut_by_truncation_counts_its_bytes_but_is_no_word() -> None:
    found = document_figures(rows_of([0, -1.0]), bytes_of(0, 4), "漢字")
    assert (found.num_bytes, found.num_words) == (4, 1)


def test_a_corpus_is_a_mean_over_tokens_not_over_documents_or_perplexities() -> None:
    documents = [figures(100, 600.0), figures(10, 20.0), figures(1, 1.0)]
    found = corpus_figures(documents).token_perplexity
    assert found == math.exp(621.0 / 111)
    mean_of_perplexities = sum(math.exp(d.nll_sum / d.num_tokens) for d in documents) / 3
    perplexity_of_means = math.exp(sum(d.nll_sum / d.num_tokens for d in documents) / 3)
    assert found > 1.2 * mean_of_perplexities > 1.2 * perplexity_of_means


def test_nothing_scored_gives_no_figure_and_no_division_by_zero() -> None:
    for corpus in (corpus_figures([]), corpus_figures([figures(0, 0.0, num_bytes=0, num_words=0)])):
        assert corpus.mean_nll is None
        assert corpus.token_perplexity is None
        assert corpus.token_perplexity_error is None
        assert corpus.word_perplexity is None
        assert corpus.byte_perplexity is None
        assert corpus.bits_per_byte is None


def test_a_text_of_whitespace_has_no_word_perplexity() -> None:
    found = document_figures(rows_of([0, -3.0]), bytes_of(0, 2), " \n")
    assert found.num_words == 0
    assert corpus_figures([found]).word_perplexity is None
    assert corpus_figures([found]).byte_perplexity == math.exp(1.5)


def test_one_document_without_word_count_leaves_the_corpus_without() -> None:
    assert corpus_figures([figures(5, 5.0, num_words=3), figures(5, 5.0, num_words=None)]).num_words is None


def test_a_perplexity_beyond_floats_is_infinite_not_an_error() -> None:
    assert corpus_figures([figures(10, 8000.0)]).word_perplexity == math.inf


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_a_log_probability_that_is_not_finite_is_never_averaged(value: float) -> None:
    rows = rows_of([0, -1.0, value, -1.0])
    with pytest.raises(
        NonFiniteError, match=r"sample 'doc', policy document, position 2: log-probability is"
    ):
        document_figures(rows, bytes_of(0, 1, 1, 1), "abc")
    assert NonFiniteError.exit_code == 5


def test_the_error_of_a_perplexity_is_that_of_its_logarithm_times_itself() -> None:
    corpus = corpus_figures([figures(10, 20.0), figures(20, 70.0)])
    assert corpus.mean_nll is not None
    assert corpus.mean_nll.standard_error is not None
    assert corpus.token_perplexity_error == math.exp(3.0) * corpus.mean_nll.standard_error
