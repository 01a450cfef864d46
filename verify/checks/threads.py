"""Does the number of CPU threads change the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.engine.api import Device
from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "threads"


def cases(context: CheckContext) -> Iterator[Case]:
    """Score long samples, which every op splits, with one thread and with more."""
    lengths = context.size.pick((97,), (300, 383), (300, 257, 129, 383, 191))
    samples = context.samples(lengths)
    prompts = tuple(sample.token_ids for sample in samples)
    for index, sample in enumerate(samples):
        one = Trial(ask=Ask.SCORE, prompts=prompts, target=index, engine=settings(num_threads=1))
        for count in context.size.pick((2,), (2, 3), (2, 3, 4, 7)):
            more = replace(one, engine=settings(num_threads=count))
            yield Case(check=NAME, name=f"{count}-{index}", workload=sample.workload, left=one, right=more)


def _absent(context: CheckContext) -> str | None:
    if context.engine.device is not Device.CPU:
        return f"CPU threads compute nothing on device {context.engine.device}"
    return None


CHECK = case_check(
    NAME,
    "scores on 1 thread = scores on 2 and more threads",
    cases,
    "1 thread = more threads",
    absent=_absent,
)
