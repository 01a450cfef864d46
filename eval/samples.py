"""Documents as ids: what every policy cuts and every figure divides by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepinfer.engine.api import Int32Array
from deepinfer.engine.errors import InputError
from deepinfer.eval.tokenizer import TextTokenizer
from deepinfer.eval.workload import Workload


@dataclass(frozen=True, kw_only=True, eq=False)
class TextSample:
    """One document of a workload, tokenized and perhaps truncated.

    Attributes:
        sample_id: unique within the run.
        workload: name of the workload it belongs to.
        text: the whole original text.
        token_ids: [S] int32, begin token first, truncated.
        token_bytes: [S] int32, bytes of the text that each kept token spells.
        num_dropped: tokens that truncation left out.
    """

    sample_id: str
    workload: str
    text: str
    token_ids: Int32Array
    token_bytes: Int32Array
    num_dropped: int

    def to_dict(self) -> dict[str, Any]:
        """The sample's entry in a run."""
        return {"sample_id": self.sample_id, "workload": self.workload, "num_ids": len(self.token_ids)}


def encode_workloads(
    workloads: Sequence[Workload], tokenizer: TextTokenizer, max_tokens: int | None
) -> list[TextSample]:
    """Tokenize every document whole, then keep its begin token and first ``max_tokens`` tokens.

    Raises:
        InputError: ``max_tokens`` below 1, or a text that cannot be tokenized (names workload and sample).
    """
    if max_tokens is not None and max_tokens < 1:
        raise InputError(f"max_tokens {max_tokens} leaves nothing to score; give at least 1")
    end = None if max_tokens is None else max_tokens + 1
    samples = []
    for workload in workloads:
        documents = workload.documents
        where = [f"workload {workload.name!r}, sample {document.sample_id!r}" for document in documents]
        encodings = tokenizer.encode_all([document.text for document in documents], where)
        for document, encoded in zip(documents, encodings, strict=True):
            kept = encoded.token_ids[:end]
            samples.append(
                TextSample(
                    sample_id=document.sample_id,
                    workload=workload.name,
                    text=document.text,
                    token_ids=kept,
                    token_bytes=encoded.token_bytes[:end],
                    num_dropped=len(encoded.token_ids) - len(kept),
                )
            )
    return samples
