"""``deepinfer eval``: perplexity of workloads under window policies, from one table of log-probabilities."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepinfer.engine.errors import InputError
from deepinfer.eval.engines.protocol import Scorer
from deepinfer.eval.figures import EvalResult, collect_figures
from deepinfer.eval.plan import plan_sample
from deepinfer.eval.records import RunHeader, RunWriter
from deepinfer.eval.runner import Progress, describe_scorer, ignore_progress, run_plans
from deepinfer.eval.samples import TextSample, encode_workloads
from deepinfer.eval.tokenizer import TextTokenizer
from deepinfer.eval.windows import WindowPolicy, choose_policies
from deepinfer.eval.workload import load_workloads


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """What to evaluate; how the model runs stands in the scorer's own configuration.

    Attributes:
        workloads: bundled names or files.
        policies: window policies as ``windows.parse_policy`` reads them; ``strided`` when none is named.
        context: ids of a window, for the policies that name no number.
        stride: ids from one strided window to the next, likewise.
        max_tokens: score only the first tokens of each text, begin token not counted; None is all of it.
        out: run folder to write or continue; None keeps nothing.
    """

    workloads: tuple[str, ...] = ("prose",)
    policies: tuple[str, ...] = ()
    context: int | None = None
    stride: int | None = None
    max_tokens: int | None = None
    out: Path | None = None


def evaluate(scorer: Scorer, config: EvalConfig, progress: Progress = ignore_progress) -> EvalResult:
    """Score every workload under every policy and return the figures, each with its labels.

    The same call on an interrupted run folder finishes it; on a finished one it reads the figures from it.

    Raises:
        InputError: a text, a policy or a context that cannot be used.
        RunError: a run folder of another question, damaged, in use, or not writable.
    """
    policies = choose_policies(config.policies, config.context, config.stride)
    workloads = load_workloads(config.workloads)
    tokenizer = TextTokenizer(scorer.model_dir, scorer.bos_token_id, scorer.vocab_size)
    samples = encode_workloads(workloads, tokenizer, config.max_tokens)
    _refuse_long_windows(samples, policies, scorer.max_context)
    header = RunHeader(
        kind="eval",
        configuration={
            **describe_scorer(scorer),
            "tokenizer": tokenizer.digest,
            "begin_token": "once, before each text",
            "policies": [policy.label for policy in policies],
            "max_tokens": config.max_tokens,
            "workloads": {workload.name: workload.digest for workload in workloads},
        },
        samples=tuple(sample.to_dict() for sample in samples),
    )
    plans = [
        plan_sample(sample.sample_id, sample.token_ids, policies, scorer.bos_token_id) for sample in samples
    ]
    with (
        tempfile.TemporaryDirectory() as scratch,
        RunWriter(config.out or Path(scratch) / "run", header) as writer,
    ):
        if not writer.is_complete:
            run_plans(scorer, plans, writer, progress)
        result = collect_figures(
            header.configuration,
            samples,
            writer.outcomes,
            notes=tuple(note for workload in workloads for note in workload.notes),
            run=config.out,
        )
        if not writer.is_complete:
            writer.finish(result.to_dict())
    return result


def _refuse_long_windows(samples: Sequence[TextSample], policies: Sequence[WindowPolicy], limit: int) -> None:
    for policy in policies:
        if policy.context is not None and policy.context > limit:
            raise InputError(
                f"policy {policy.label}: the model takes {limit} ids at most; give a smaller context"
            )
        for sample in samples:
            if policy.context is None and len(sample.token_ids) > limit:
                raise InputError(
                    f"sample {sample.sample_id!r}: {len(sample.token_ids)} ids are more than the {limit} "
                    f"the model takes; use a windowed policy in place of {policy.label}, "
                    f"or --max-tokens {limit - 1}"
                )
