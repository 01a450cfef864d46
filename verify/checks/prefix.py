"""Does it matter whether a prefix was computed or found: cold, warm and partly evicted prefix caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.verify.case import Ask, Case, Need, TokenIds, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "prefix"


def cases(context: CheckContext) -> Iterator[Case]:
    """Generate after a cold cache, after one that holds the prefix, and after one that lost part of it."""
    pick = context.size.pick
    shared_lengths = pick((128,), (128, 129, 255, 257), (128, 129, 191, 193, 255, 256, 257, 384))
    for number, shared in enumerate(shared_lengths):
        for extra in pick((9,), (1 + 39 * (number % 2),), (1, 2, 23, 64, 65)):
            sample = context.sample(number, shared + extra)
            # the warm prompt goes its own way after the shared part
            other = context.sample(number + 1, 30, start=91).token_ids
            cold = _cold(sample.token_ids, pick(4, 12, 16))
            warm = replace(cold, before=((*sample.token_ids[:shared], *other),))
            yield Case(
                check=NAME,
                name=f"warm-{shared}-{extra}",
                workload=sample.workload,
                left=cold,
                right=warm,
                need=Need.HIT,
            )
    for number in range(pick(1, 2, 6)):
        num_blocks = pick(4, 6, 6)
        sample = context.sample(number, (num_blocks // 2) * BLOCK_TOKENS + 20 + number)
        cold = _cold(sample.token_ids, pick(4, 12, 32))
        # the second prompt needs blocks that only the end of the first one's can give
        intruder = context.sample(number + 2, (num_blocks - 1) * BLOCK_TOKENS - 40, start=13).token_ids
        evicted = replace(
            cold, before=(sample.token_ids, intruder), engine=settings(num_cache_blocks=num_blocks)
        )
        yield Case(
            check=NAME,
            name=f"evicted-{number}",
            workload=sample.workload,
            left=cold,
            right=evicted,
            need=Need.HIT,
        )


def _cold(token_ids: TokenIds, max_tokens: int) -> Trial:
    return Trial(
        ask=Ask.GENERATE,
        prompts=(token_ids,),
        max_tokens=max_tokens,
        engine=settings(num_cache_blocks=32),
    )


CHECK = case_check(
    NAME,
    "generating after a cold prefix cache = after a warm one = after one that lost part of the prefix",
    cases,
    "cold = warm = partly evicted",
    absent=lambda context: None if context.engine.prefix_caching else "prefix reuse is switched off",
)
