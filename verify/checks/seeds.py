"""Does a seed hold in any company: beside requests with other seeds, and with none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.verify.case import Ask, Case, Trial
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "seeds"


def cases(context: CheckContext) -> Iterator[Case]:
    """A seeded request alone, and beside seeded and unseeded ones, which draw anew on every run."""
    for number in range(context.size.pick(1, 2, 8)):
        sample = context.sample(number, 30 + 7 * number)
        alone = Trial(
            ask=Ask.GENERATE,
            prompts=(sample.token_ids,),
            max_tokens=context.size.pick(6, 24, 32),
            temperature=1.0,
            seeds=(2**63 + number,),
        )
        others = [context.sample(number + 1 + i, 25 + i, start=40 * i).token_ids for i in range(3)]
        every = (("unseeded", (None, None, None)), ("mixed", (1, None, 2**63 + number)))
        for name, seeds in every[: context.size.pick(1, 2, 2)]:
            prompts = (others[0], sample.token_ids, *others[1:])
            beside = replace(alone, prompts=prompts, target=1, seeds=(seeds[0], *alone.seeds, *seeds[1:]))
            yield Case(
                check=NAME,
                name=f"{name}-{number}",
                workload=sample.workload,
                left=alone,
                right=beside,
            )


CHECK = case_check(
    NAME,
    "tokens drawn with a seed alone = drawn beside requests with other seeds and with none",
    cases,
    "alone = beside seeded and unseeded requests",
)
