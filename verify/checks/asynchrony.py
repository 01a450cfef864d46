"""Does planning a step while another runs change the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.verify.case import Ask, Case, Need, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "asynchrony"


def cases(context: CheckContext) -> Iterator[Case]:
    """A request alone, step by step, against the same beside others in an engine that plans ahead."""
    pick = context.size.pick
    for number in range(pick(1, 2, 8)):
        samples = [context.sample(number + i, 60 + 30 * i, start=3 * number) for i in range(3)]
        alone = Trial(
            ask=Ask.GENERATE,
            prompts=(samples[0].token_ids,),
            max_tokens=pick(6, 20, 40),
            temperature=0.7 * (number % 2),
            seeds=(number,),
            engine=settings(num_cache_blocks=16, speculation="off", asynchronous=False),
        )
        ahead = replace(
            alone,
            prompts=tuple(sample.token_ids for sample in samples),
            seeds=(number, 7, 8),
            engine=settings(num_cache_blocks=16, max_chunk_tokens=40, speculation="off", asynchronous=True),
        )
        yield Case(
            check=NAME,
            name=f"ahead-{number}",
            workload=samples[0].workload,
            left=alone,
            right=ahead,
            need=Need.AHEAD,
        )


CHECK = case_check(
    NAME,
    "an answer of one step after the other = the same answer with each step planned while one runs",
    cases,
    "one by one = ahead",
)
