"""Truncated prefill, tier *logprobs*: what ``compact`` leaves out, ``mask`` never looks at.

The two modes are bitwise equal by construction (model.md section 10.4): every kept row has the same inputs,
the same visible keys and the same arithmetic, only fewer rows share the batch. Nothing of the kind holds
against mode ``off``, since truncation cuts windows that the exact model has; that distance is a figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from deepinfer.engine.api import PrefillMode, RequestFailure, ScoreResult
from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.verify.case import Ask, Case, Need, Trial, settings
from deepinfer.verify.case_check import run_cases
from deepinfer.verify.check import Check, Tier
from deepinfer.verify.context import CheckContext, full_requests
from deepinfer.verify.drift import Drift
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.subject import Sample
from deepinfer.verify.tally import Tally

NAME = "yoco-logprobs"


def run(context: CheckContext) -> CheckResult:
    """Compare mask with compact: scores, logits rows and every cache entry; measure off against compact."""
    if not context.model.supports_truncated_prefill:
        return not_applicable(NAME)
    tally = Tally(NAME)
    samples = truncated_samples(context)
    requests = full_requests(samples)
    exact = context.base.score(requests)
    mask = context.varied(prefill=PrefillMode.MASK)
    masked = mask.score(requests)
    masked_states = [mask.prefill_state(sample.token_ids) for sample in samples]
    del mask
    compact = context.varied(prefill=PrefillMode.COMPACT)
    compacted = compact.score(requests)
    drift = Drift()
    for index, sample in enumerate(samples):
        case = f"{sample.sample_id} masked against compact"
        tally.scores(case, masked[index], compacted[index])
        tally.mappings(case, masked_states[index], compact.prefill_state(sample.token_ids))
        drift.add(exact[index], compacted[index])
        _expect_kept_rows(tally, context, sample, compacted[index])
    run_cases(context, tally, cases(context))
    tally.figures.update(drift.figures())
    return tally.result(
        f"mask = compact in {tally.num_comparisons} rows and {tally.num_inspected} arrays, for every "
        f"chunking, with decoding and prefix hits; {drift.describe()}"
    )


def cases(context: CheckContext) -> Iterator[Case]:
    """Mask against compact in chunks of all kinds, while decoding behind them, and on a warm prefix cache."""
    if not context.model.supports_truncated_prefill:
        return
    pick, keep = context.size.pick, kept_rows(context)
    window = context.model.sliding_window
    chunk_sizes = pick(
        (keep - 1,), (1, 7, window, keep), (1, 2, 7, window - 1, window, window + 1, keep, 128)
    )
    for number, size in enumerate(chunk_sizes):
        sample = context.sample(number, keep + pick(20, 33, 90) + number)
        for ask in (Ask.SCORE, Ask.STATE):
            mask = _truncated(Trial(ask=ask, prompts=(sample.token_ids,)), PrefillMode.MASK)
            compact = _truncated(replace(mask, engine=settings(max_chunk_tokens=size)), PrefillMode.COMPACT)
            yield _case(f"chunks-{size}-{ask}", sample, mask, compact)
    for number in range(pick(1, 2, 5)):
        sample = context.sample(number, pick(1, 2, 2) * BLOCK_TOKENS + keep - number)
        plain = Trial(
            ask=Ask.GENERATE,
            prompts=(sample.token_ids,),
            max_tokens=pick(5, 16, 32),
            engine=settings(num_cache_blocks=16),
        )
        mask, compact = (_truncated(plain, mode) for mode in (PrefillMode.MASK, PrefillMode.COMPACT))
        yield _case(f"decode-{number}", sample, mask, compact)
        warm = replace(compact, before=((*sample.token_ids[:-keep], *sample.token_ids[: keep // 2]),))
        yield _case(f"warm-{number}", sample, mask, warm)


def _case(name: str, sample: Sample, left: Trial, right: Trial) -> Case:
    need = Need.HIT if right.before else Need.NOTHING
    return Case(check=NAME, name=name, workload=sample.workload, left=left, right=right, need=need)


def _truncated(trial: Trial, mode: PrefillMode) -> Trial:
    return replace(trial, engine=(*trial.engine, *settings(prefill=mode)))


def truncated_samples(context: CheckContext) -> list[Sample]:
    """Samples whose lengths lie around the number of kept rows, and well beyond it."""
    keep = kept_rows(context)
    window = context.model.sliding_window
    edges = (keep - 1, keep, keep + 1)
    lengths = (*edges, keep + window - 1, 2 * keep + window + 1, 3 * keep + 2 * window + 3)
    return context.samples(context.size.pick((keep + window - 1,), lengths, lengths))


def kept_rows(context: CheckContext) -> int:
    """Trailing rows that truncated prefill keeps in this configuration."""
    return context.engine.keep or context.model.default_keep


def not_applicable(name: str) -> CheckResult:
    """The result for a model whose layers cannot be truncated."""
    return CheckResult(
        name=name,
        status=Status.NOT_APPLICABLE,
        detail="a decoder layer of this model owns a compressor, so prefill cannot be truncated",
    )


def _expect_kept_rows(
    tally: Tally, context: CheckContext, sample: Sample, result: ScoreResult | RequestFailure
) -> None:
    """Holes must stand exactly where the kept rectangle ends, or an empty answer would pass as equal."""
    if isinstance(result, RequestFailure):
        return
    length = len(sample.token_ids)
    first_kept = max(0, length - kept_rows(context))
    expected = np.arange(length) > first_kept  # row p predicts position p + 1
    if not np.array_equal(result.valid, expected):
        tally.mismatch(
            sample.sample_id, "valid", f"positions after {first_kept} should be valid, and no others"
        )


CHECK = Check(
    name=NAME,
    about="truncated prefill: mask = compact in every logits row and cache entry; drift from off as figures",
    run=run,
    tier=Tier.LOGPROBS,
    cases=cases,
)
