"""Does losing the caches in the middle of an answer change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.verify.case import Ask, Case, Need, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "preemption"


def cases(context: CheckContext) -> Iterator[Case]:
    """Three requests in an engine with room for fewer, against the victim alone in a roomy one."""
    for number in range(context.size.pick(1, 2, 6)):
        samples = [context.sample(number + i, 124, start=7 * number) for i in range(3)]
        prompts = tuple(sample.token_ids for sample in samples)
        alone = Trial(
            ask=Ask.GENERATE,
            prompts=prompts[-1:],
            max_tokens=context.size.pick(6, 40, 60),
            temperature=0.8 * (number % 2),
            seeds=(5,),
            engine=settings(num_cache_blocks=32, prefix_caching=False),
        )
        crowded = replace(
            alone,
            prompts=prompts,
            target=2,
            seeds=(3, 4, 5),
            engine=settings(num_cache_blocks=4, prefix_caching=number % 3 == 2),
        )
        yield Case(
            check=NAME,
            name=f"crowded-{number}",
            workload=samples[2].workload,
            left=alone,
            right=crowded,
            need=Need.PREEMPTION,
        )


CHECK = case_check(
    NAME,
    "an answer in a roomy engine = the same answer after its caches were taken away and computed again",
    cases,
    "undisturbed = preempted and resumed",
)
