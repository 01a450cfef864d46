"""Does the engine compute what the reference implementation computes, within the stated tolerances."""

from __future__ import annotations

from itertools import islice

from deepinfer.engine.api import CacheFormat, Profile, RequestFailure, ScoreRequest
from deepinfer.engine.draft_request import DraftRequest
from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext
from deepinfer.verify.deviation import Deviation, draft_deviations, score_deviations
from deepinfer.verify.reference_data import (
    BF16_ACTIVATIONS,
    EXACT_CACHES,
    RELEASED_CACHES,
    ReferenceSequence,
    Tolerances,
    load_references,
)
from deepinfer.verify.result import CheckResult, Status

NAME = "reference"


def run(context: CheckContext) -> CheckResult:
    """Compare every reference sequence, with released caches and, in profile strict, with exact ones too."""
    if context.reference_dir is None:
        detail = "no reference outputs lie beside this checkpoint"
        return CheckResult(name=NAME, status=Status.NOT_APPLICABLE, detail=detail)
    found: dict[str, list[Deviation]] = {}
    for cache_format, variant, tolerances in variants(context.engine.profile):
        subject = context.varied(cache_format=cache_format)
        references = load_references(context.reference_dir, variant)
        for reference in islice(references, context.size.pick(1, None, None)):
            case = f"{reference.name} ({variant})"
            request = ScoreRequest(
                request_id=reference.name, token_ids=reference.token_ids, return_logits=True
            )
            [result] = subject.score([request])
            if isinstance(result, RequestFailure):
                detail = f"{case} was refused: {result.reason}"
                return CheckResult(name=NAME, status=Status.SKIPPED, detail=detail)
            found[case] = [*score_deviations(reference, result, tolerances)]
            if tolerances.draft_max is not None:
                draft = subject.draft([draft_request(reference)])[0]
                if isinstance(draft, RequestFailure):
                    detail = f"draft of {case} was refused: {draft.reason}"
                    return CheckResult(name=NAME, status=Status.SKIPPED, detail=detail)
                found[case] += draft_deviations(reference, draft, tolerances)
    return judge(found)


def draft_request(reference: ReferenceSequence) -> DraftRequest:
    """The blocks that the reference drafted."""
    return DraftRequest(
        request_id=reference.name,
        token_ids=reference.token_ids,
        anchors=[int(anchor) for anchor in reference.arrays["dspark_anchor_positions"]],
        return_logits=True,
    )


def variants(profile: Profile) -> list[tuple[CacheFormat, str, Tolerances]]:
    """Which arrays a profile is held against, and how closely."""
    if profile is Profile.FAST:
        return [(CacheFormat.RELEASED, "fp32_q", BF16_ACTIVATIONS)]
    return [
        (CacheFormat.RELEASED, "fp32_q", RELEASED_CACHES),
        (CacheFormat.NONE, "fp32_noq", EXACT_CACHES),
    ]


def judge(found: dict[str, list[Deviation]]) -> CheckResult:
    """One result: the first broken bound, or how near the nearest came."""
    pairs = [(case, deviation) for case, deviations in found.items() for deviation in deviations]
    broken = [(case, deviation) for case, deviation in pairs if not deviation.passes]
    num_values = sum(deviation.num_values for _, deviation in pairs)
    status, detail = Status.SAME, f"{len(pairs)} bounds kept by {num_values:,} values of {len(found)} outputs"
    if not pairs:
        status, detail = Status.SKIPPED, "the reference folder lists no sequence"
    if broken:
        case, worst = broken[0]
        status = Status.DIFFERENT
        detail = (
            f"{case}: {worst.array} is {worst.measured:.3g}, allowed {worst.allowed:.3g}; "
            f"{len(broken)} of {len(pairs)} bounds broken"
        )
    return CheckResult(
        name=NAME, status=status, detail=detail, num_inspected=num_values, num_different=len(broken)
    )


CHECK = Check(
    name=NAME,
    about="bundled outputs of an independent implementation are met within the tolerances stated beside them",
    run=run,
)
