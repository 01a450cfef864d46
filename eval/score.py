"""``deepinfer score``: log-probabilities of given token ids, one window a sample, into a run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.engine.api import Int32Array, ScoreRequest, ScoreResult
from deepinfer.engine.errors import InputError
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.json_lines import read_json_lines, require_sample_id
from deepinfer.eval.logits_file import LogitsFile
from deepinfer.eval.plan import SamplePlan
from deepinfer.eval.records import RunHeader, RunWriter
from deepinfer.eval.runner import Progress, describe_scorer, ignore_progress, run_plans
from deepinfer.eval.shard_file import SampleOutcome
from deepinfer.eval.windows import WholeDocument


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """What to score and where to put it.

    Attributes:
        tokens: JSON lines ``{id, token_ids}``; ids are taken as they stand, no begin token is added.
        out: run folder to write or continue.
        num_top: most likely tokens to store per position.
        logits: safetensors file for full logits, one float32 [positions, vocabulary] tensor a sample whose
            row p predicts position p + 1; or None. With it, stored samples are run again for their logits.
    """

    tokens: Path
    out: Path
    num_top: int = 0
    logits: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ScoreReport:
    """What ``deepinfer score`` says.

    Attributes:
        out: the run folder.
        num_samples: samples asked for.
        num_scored_tokens: tokens with a log-probability.
        failures: sample id -> reason, of the samples that could not be run.
        non_finite: ids of samples with a NaN or infinite log-probability.
    """

    out: Path
    num_samples: int
    num_scored_tokens: int
    failures: dict[str, str]
    non_finite: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """2 when a sample could not be run, 5 when a log-probability is not finite, otherwise 0."""
        return 2 if self.failures else 5 if self.non_finite else 0

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "exit_code": self.exit_code,
            "run": str(self.out),
            "num_samples": self.num_samples,
            "num_scored_tokens": self.num_scored_tokens,
            "failures": self.failures,
            "non_finite": list(self.non_finite),
        }


def score_file(scorer: Scorer, config: ScoreConfig, progress: Progress = ignore_progress) -> ScoreReport:
    """Score every line of a file; the same call on an interrupted run folder finishes it.

    Raises:
        InputError: a line that cannot be used; names file and line. Nothing is run then.
        RunError: a run folder of another question, damaged, in use, or not writable.
    """
    if not 0 <= config.num_top <= scorer.vocab_size:
        raise InputError(
            f"num_top {config.num_top} must be from 0 to the {scorer.vocab_size} ids of the model"
        )
    sequences = read_token_file(config.tokens, scorer.vocab_size)
    plans = [
        _plan_sequence(sample_id, ids, config.num_top, config.logits is not None)
        for sample_id, ids in sequences.items()
    ]
    header = RunHeader(
        kind="score",
        configuration={
            **describe_scorer(scorer),
            "policies": [WholeDocument().label],
            "num_top": config.num_top,
            "tokens": _digest_of_sequences(sequences),
        },
        samples=tuple(
            {"sample_id": sample_id, "workload": None, "num_ids": len(ids)}
            for sample_id, ids in sequences.items()
        ),
    )
    shapes = {sample_id: (len(ids), scorer.vocab_size) for sample_id, ids in sequences.items()}
    with (
        RunWriter(config.out, header) as writer,
        LogitsFile(config.logits, shapes) if config.logits else nullcontext() as logits_file,
    ):

        def store_logits(plan: SamplePlan, result: ScoreResult) -> None:
            if logits_file:
                logits_file.add(plan.sample_id, _rows_after_each_position(result))

        run_plans(scorer, plans, writer, progress, observe=store_logits if logits_file else None)
        report = _report(config.out, plans, writer.outcomes)
        if not writer.is_complete:
            writer.finish(report.to_dict() | {"run": None})
    return report


def read_token_file(path: Path, vocab_size: int) -> dict[str, Int32Array]:
    """Sample id -> [S] int32 token ids, in the order of the file.

    Raises:
        InputError: what ``json_lines.read_json_lines`` refuses, a repeated id, no token ids, or one that is
            not an integer of the vocabulary.
    """
    sequences: dict[str, Int32Array] = {}
    seen: dict[str, str] = {}
    for line in read_json_lines(path, required={"id", "token_ids"}):
        sample_id = require_sample_id(line, seen)
        where = f"{line.where}: sample {sample_id!r}"
        ids = line.fields["token_ids"]
        if not isinstance(ids, list) or not ids:
            raise InputError(f"{where}: token_ids must be a list of at least one integer")
        for position, token_id in enumerate(ids):
            if type(token_id) is not int:  # a JSON true is an int to isinstance
                raise InputError(f"{where}: token_ids[{position}] is {token_id!r}; write an integer")
            if not 0 <= token_id < vocab_size:
                raise InputError(
                    f"{where}: token_ids[{position}] is {token_id}, outside the model's 0 to {vocab_size - 1}"
                )
        sequences[sample_id] = np.array(ids, dtype=np.int32)
    return sequences


def _plan_sequence(sample_id: str, ids: Int32Array, num_top: int, return_logits: bool) -> SamplePlan:
    request = ScoreRequest(
        request_id=sample_id, token_ids=ids.tolist(), num_top=num_top, return_logits=return_logits
    )
    windows = tuple((window, sample_id) for window in WholeDocument().windows(len(ids)))
    return SamplePlan(
        sample_id=sample_id,
        token_ids=ids,
        requests=(request,),
        uses={WholeDocument().label: windows},
        num_top=num_top,
    )


def _rows_after_each_position(result: ScoreResult) -> Any:
    """[S, V] float32: row p predicts position p + 1, where the engine's row p predicts position p."""
    assert result.logits is not None, "logits were asked for"
    assert result.final_logits is not None, "and the row after the last token comes with them"
    return np.concatenate([result.logits[1:], result.final_logits[None]])


def _digest_of_sequences(sequences: dict[str, Int32Array]) -> str:
    total = hashlib.sha256()
    for sample_id, ids in sequences.items():
        for part in (sample_id.encode(), ids.astype("<i4").tobytes()):
            total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()


def _report(out: Path, plans: Sequence[SamplePlan], outcomes: dict[str, SampleOutcome]) -> ScoreReport:
    ordered = [outcomes[plan.sample_id] for plan in plans]
    tables = [rows for outcome in ordered for rows in outcome.rows]
    return ScoreReport(
        out=out,
        num_samples=len(ordered),
        num_scored_tokens=sum(int(rows.valid.sum()) for rows in tables),
        failures={outcome.sample_id: outcome.failure for outcome in ordered if outcome.failure},
        non_finite=tuple(
            rows.sample_id for rows in tables if not np.isfinite(rows.logprob[rows.valid]).all()
        ),
    )
