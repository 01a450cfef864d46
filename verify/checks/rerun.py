"""The control of every other check: the same question twice, to the same engine and to one opened afresh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from deepinfer.verify.case import Ask, Case, Place, Trial
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "rerun"


def cases(context: CheckContext) -> Iterator[Case]:
    """Score the same batch twice, and once more by an engine opened afresh; generate twice."""
    lengths = context.size.pick((61, 33), (257, 129), (300, 257, 129, 383, 191))
    samples = context.samples(lengths)
    prompts = tuple(sample.token_ids for sample in samples)
    for index, sample in enumerate(samples):
        once = Trial(ask=Ask.SCORE, prompts=prompts, target=index)
        named: dict[str, Any] = {"check": NAME, "workload": sample.workload, "left": once}
        yield Case(**named, name=f"again-{index}", right=once)
        yield Case(**named, name=f"reopened-{index}", right=replace(once, place=Place.REOPENED))
    for index in range(context.size.pick(1, 2, 5)):
        sample = context.sample(index, 70)
        once = Trial(
            ask=Ask.GENERATE,
            prompts=(sample.token_ids,),
            max_tokens=context.size.pick(5, 24, 64),
            temperature=0.9,
            seeds=(index + 1,),
        )
        yield Case(check=NAME, name=f"generate-{index}", workload=sample.workload, left=once, right=once)


CHECK = case_check(
    NAME,
    "control: the same batch twice, and by an engine opened afresh, scored and generated: equal bytes",
    cases,
    "a second run = an engine opened afresh = the first run",
)
