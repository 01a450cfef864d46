"""Truncated prefill, tier *confidence*: drafts that start from mask and from compact are the same drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.engine.api import PrefillMode
from deepinfer.engine.draft_request import DraftRequest
from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.case_check import run_cases
from deepinfer.verify.check import Check, Tier
from deepinfer.verify.checks.yoco import kept_rows, not_applicable, truncated_samples
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import CheckResult, Status
from deepinfer.verify.tally import Tally

NAME = "yoco-confidence"


def run(context: CheckContext) -> CheckResult:
    """Compare draft tokens, logits and confidences at the end of each prompt and a few tokens before it."""
    if not context.model.supports_truncated_prefill:
        return not_applicable(NAME)
    if context.model.num_nextn_predict_layers == 0:
        return CheckResult(name=NAME, status=Status.NOT_APPLICABLE, detail="this model has no draft layers")
    tally = Tally(NAME)
    samples = truncated_samples(context)
    # All anchors lie in the kept rectangle, where both modes hold the features that a draft reads.
    requests = [
        DraftRequest(
            request_id=sample.sample_id,
            token_ids=sample.token_ids,
            anchors=(len(sample.token_ids) - 3, len(sample.token_ids)),
            return_logits=True,
        )
        for sample in samples
    ]
    masked = context.varied(prefill=PrefillMode.MASK).draft(requests)
    compact = context.varied(prefill=PrefillMode.COMPACT).draft(requests)
    for sample, left, right in zip(samples, masked, compact, strict=True):
        tally.drafts(f"draft of {sample.sample_id} masked against compact", left, right)
    run_cases(context, tally, cases(context))
    return tally.result(f"mask = compact in {tally.num_comparisons} drafted rows, tokens and confidences")


def cases(context: CheckContext) -> Iterator[Case]:
    """Drafts after mask against drafts after compact, prefilled in chunks."""
    if not context.model.supports_truncated_prefill or context.model.num_nextn_predict_layers == 0:
        return
    sizes = context.size.pick((17,), (1, 64, 73), (1, 7, 17, 63, 64, 65, 73, 128) * 3)
    for number, size in enumerate(sizes):
        sample = context.sample(number, kept_rows(context) + 31 + number)
        mask = Trial(ask=Ask.DRAFT, prompts=(sample.token_ids,), engine=settings(prefill=PrefillMode.MASK))
        compact = replace(mask, engine=settings(prefill=PrefillMode.COMPACT, max_chunk_tokens=size))
        name = f"{number}-chunks-{size}"
        yield Case(check=NAME, name=name, workload=sample.workload, left=mask, right=compact)


CHECK = Check(
    name=NAME,
    about="truncated prefill: draft tokens, draft logits and confidences of mask = those of compact",
    run=run,
    tier=Tier.CONFIDENCE,
    cases=cases,
)
