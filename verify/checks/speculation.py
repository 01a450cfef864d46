"""Does verifying drafts change the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.verify.case import Ask, Case, Need, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "speculation"


def cases(context: CheckContext) -> Iterator[Case]:
    """Prompts that decode across the end of a block, greedy and seeded, with drafts of several lengths."""
    pick = context.size.pick
    policies = pick(("fixed:5", "fixed:4"), ("fixed:5", "fixed:2", "confidence"), ("confidence", *_ALL))
    for number, policy in enumerate(policies):
        samples = [context.sample(number + i, 116, start=5 * number) for i in range(1 + number % 2)]
        plain = Trial(
            ask=Ask.GENERATE,
            prompts=tuple(sample.token_ids for sample in samples),
            max_tokens=pick(14, 30, 60),
            temperature=0.6 * (number % 2),
            seeds=tuple(range(len(samples))),
            engine=settings(num_cache_blocks=16, speculation="off", asynchronous=False),
        )
        settled = settings(num_cache_blocks=16, speculation=policy, asynchronous=False)
        yield Case(
            check=NAME,
            name=f"{policy.replace(':', '-')}-{number}",
            workload=samples[0].workload,
            left=plain,
            right=replace(plain, engine=settled),
            need=Need.NOTHING if policy == "confidence" else Need.DRAFTS,
        )


_ALL = tuple(f"fixed:{count}" for count in (1, 2, 3, 4, 5, 5))


def _absent(context: CheckContext) -> str | None:
    return None if context.model.num_nextn_predict_layers else "the model has no draft stages"


CHECK = case_check(
    NAME,
    "an answer one token at a time = the same answer with drafts verified, greedy and seeded",
    cases,
    "plain = speculative",
    absent=_absent,
)
