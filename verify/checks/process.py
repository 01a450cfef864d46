"""Does the process matter: another one has another hash seed and other addresses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.verify.case import Ask, Case, Place, Trial
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "process"


def cases(context: CheckContext) -> Iterator[Case]:
    """Score samples here and in a fresh process each."""
    for index in range(context.size.pick(1, 1, 4)):
        sample = context.sample(index, context.size.pick(48, 129, 129))
        here = Trial(ask=Ask.SCORE, prompts=(sample.token_ids,))
        there = replace(here, place=Place.PROCESS)
        yield Case(check=NAME, name=f"score-{index}", workload=sample.workload, left=here, right=there)


CHECK = case_check(
    NAME,
    "scores in this process = scores in a fresh process with another hash seed",
    cases,
    "this process = another",
    absent=lambda context: None if context.start_elsewhere else "this engine runs in one process only",
)
