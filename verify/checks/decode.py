"""Do prefill and decode compute the same function: generated text, scored again in one prefill."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer.engine.api import PrefillMode
from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "decode"


def cases(context: CheckContext) -> Iterator[Case]:
    """Prompts around the edges of windows and blocks, continued across them."""
    pick = context.size.pick
    lengths = pick((59,), (1, 60, 120, 250), (1, 2, 3, 31, 32, 60, 63, 64, 65, 120, 127, 128, 129, 250, 500))
    for number, length in enumerate(lengths):
        sample = context.sample(number, length)
        generated = Trial(
            ask=Ask.GENERATE,
            prompts=(sample.token_ids,),
            max_tokens=pick(7, 24, 48),
            temperature=float(number % 2),
            seeds=(number,),
            engine=settings(num_cache_blocks=32),
        )
        scored = Trial(ask=Ask.RESCORE, prompts=(sample.token_ids,))
        yield Case(check=NAME, name=f"from-{length}", workload=sample.workload, left=generated, right=scored)


def _absent(context: CheckContext) -> str | None:
    if context.engine.prefill is PrefillMode.OFF:
        return None
    return f"prefill {context.engine.prefill} drops rows that decoding would have computed"


CHECK = case_check(
    NAME,
    "every logits row of a decoded text = the row that one prefill of the whole text gives",
    cases,
    "decode = prefill",
    absent=_absent,
)
