"""Does it change the answer whether small steps are recorded: padded to shared shapes, in one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "graphs"


def cases(context: CheckContext) -> Iterator[Case]:
    """Decode alone and in company, over block edges, with and without recording.

    Three and more prompts, since the buckets of one and of two rows hold no padding.
    """
    pick = context.size.pick
    for number, length in enumerate(pick((126,), (30, 126, 200), (1, 30, 63, 126, 127, 200, 300))):
        prompts = tuple(context.sample(number + i, length + 3 * i).token_ids for i in range(3 + 2 * number))
        plain = Trial(
            ask=Ask.GENERATE,
            prompts=prompts,
            target=number % 3,
            max_tokens=pick(6, 16, 40),
            temperature=float(number % 2),
            seeds=tuple(range(len(prompts))),
            engine=settings(recorded_steps=False, num_cache_blocks=64),
        )
        recorded = replace(plain, engine=settings(recorded_steps=True, num_cache_blocks=64))
        workload = context.sample(number + number % 3, length).workload
        yield Case(check=NAME, name=f"from-{length}", workload=workload, left=plain, right=recorded)


CHECK = case_check(
    NAME,
    "decoding in steps that are padded and recorded (CUDA graphs on such a device) = in steps as they come",
    cases,
    "recorded = as they come",
)
