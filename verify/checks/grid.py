"""All axes at once: random company, chunks, threads, prefix caches and sampling, drawn from fixed seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from deepinfer.engine.api import PrefillMode
from deepinfer.verify.case import Ask, Case, Setting, TokenIds, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "grid"


def cases(context: CheckContext) -> Iterator[Case]:
    """A plain run of a sample against one with every axis drawn at random; the same draws on every run."""
    for number in range(context.size.pick(2, 6, 40)):
        draw = random.Random(1000 + number)
        sample = context.sample(number, draw.randint(20, context.size.pick(50, 200, 330)))
        prompts = [_neighbour(context, draw) for _ in range(draw.randint(0, 6))]
        target = draw.randint(0, len(prompts))
        prompts.insert(target, sample.token_ids)
        changes: dict[str, Setting] = {
            "num_threads": draw.choice((1, 2, 3)),
            "max_batch_tokens": draw.choice((64, 100, 257, 2048)),
            "max_chunk_tokens": draw.choice((None, 11, 32, 63, 64, 100, 128)),
        }
        if number % 2 == 0 or context.engine.prefill is not PrefillMode.OFF:
            plain = Trial(ask=Ask.SCORE, prompts=(sample.token_ids,))
            drawn = replace(plain, prompts=tuple(prompts), target=target, engine=settings(**changes))
        else:
            changes |= {"num_cache_blocks": draw.choice((8, 16, 64)), "max_num_seqs": draw.choice((1, 2, 8))}
            plain = Trial(
                ask=Ask.GENERATE,
                prompts=(sample.token_ids,),
                max_tokens=context.size.pick(6, 24, 40),
                temperature=draw.choice((0.0, 0.7, 1.3)),
                seeds=(number,),
                engine=settings(prefix_caching=False, num_cache_blocks=16),
            )
            seeds = [draw.choice((None, 1, 2)) for _ in prompts]
            seeds[target] = number
            drawn = replace(
                plain,
                prompts=tuple(prompts),
                target=target,
                seeds=tuple(seeds),
                engine=settings(**changes),
                before=(sample.token_ids,) if draw.random() < 0.5 else (),
            )
        yield Case(check=NAME, name=f"draw-{number}", workload=sample.workload, left=plain, right=drawn)


def _neighbour(context: CheckContext, draw: random.Random) -> TokenIds:
    return context.sample(draw.randint(0, 4), draw.randint(1, 90), start=draw.randint(0, 400)).token_ids


CHECK = case_check(
    NAME,
    "random company, chunks, budgets, threads, prefix caches and seeds together = a plain run",
    cases,
    "plain = drawn at random",
)
