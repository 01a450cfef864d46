"""The real engine under the evaluation: its numbers on real text are those of the published reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.eval.engines.native import NativeScorer
from deepinfer.eval.evaluate import EvalConfig, evaluate
from deepinfer.eval.stored_run import read_run
from deepinfer.eval.workload import load_workload

DOCUMENTS = {"prose": "prose-08", "technical": "technical-00", "code": "code-08", "unicode": "unicode-08"}


@pytest.fixture(scope="module")
def scorer() -> NativeScorer:
    return NativeScorer()


def test_documents_have_the_published_log_likelihood(
    scorer: NativeScorer, write_texts: Callable[..., Path], mini_dir: Path
) -> None:
    """Within 0.005 nats per token of a document, the distance of independent fp32 implementations."""
    reference = json.loads((mini_dir / "ppl_reference.json").read_text())["workloads"]
    texts = {
        document.sample_id: document.text
        for name, wanted in DOCUMENTS.items()
        for document in load_workload(name).documents
        if document.sample_id == wanted
    }
    config = EvalConfig(workloads=(str(write_texts(**texts)),), policies=("disjoint:512",), max_tokens=4096)
    (corpus,) = evaluate(scorer, config).corpora
    expected = {entry["id"]: entry for workload in reference.values() for entry in workload["per_document"]}
    assert sorted(line.sample_id for line in corpus.samples) == sorted(DOCUMENTS.values())
    for line in corpus.samples:
        assert line.figures is not None
        entry = expected[line.sample_id]
        assert line.figures.num_tokens == entry["scored_tokens"]
        distance = abs(line.figures.nll_sum - entry["nll_sum"]["fp32"]) / entry["scored_tokens"]
        assert distance < 0.005, line.sample_id


def test_windows_shared_between_policies_have_the_bits_of_windows_run_alone(
    scorer: NativeScorer, write_texts: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_texts("It was the best of times, it was the worst of times. " * 8)

    def digests(*policies: str) -> dict[str, str]:
        out = tmp_path / "-".join(policy.replace(":", "_") for policy in policies)
        evaluate(scorer, EvalConfig(workloads=(str(path),), policies=policies, out=out))
        digest: dict[str, str] = read_run(out).manifest["samples"][0]["digests"]
        return digest

    policies = ("disjoint:32", "strided:32:16", "half:32")
    alone = {label: digest for policy in policies for label, digest in digests(policy).items()}
    assert digests(*policies) == alone
