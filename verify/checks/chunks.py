"""Does it matter how prefill is cut: chunks that end one before, at and one after every edge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from deepinfer.engine.step_plan import BLOCK_TOKENS
from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "chunks"


def cases(context: CheckContext) -> Iterator[Case]:
    """One chunk against chunks of many sizes: scores and caches; steps that cut several prompts."""
    pick = context.size.pick
    for number, size in enumerate(chunk_sizes(context)):
        # small chunks on short texts: what they can do wrong shows within a window
        length = min(pick(70, 300, 300), max(pick(40, 60, 140), 2 * size + 1 + size % 3))
        sample = context.sample(number, length)
        whole = Trial(ask=Ask.SCORE, prompts=(sample.token_ids,))
        cut = replace(whole, engine=settings(max_chunk_tokens=size))
        yield Case(check=NAME, name=f"size-{size}", workload=sample.workload, left=whole, right=cut)
    for number, size in enumerate(pick((17,), (1, 64, 127), chunk_sizes(context))):
        sample = context.sample(number, pick(75, 200, 270))
        whole = Trial(ask=Ask.STATE, prompts=(sample.token_ids,))
        cut = replace(whole, engine=settings(max_chunk_tokens=size))
        yield Case(check=NAME, name=f"caches-{size}", workload=sample.workload, left=whole, right=cut)
    for number, budget in enumerate(pick((29,), (29, 64, 127), (7, 29, 64, 65, 127, 128, 200))):
        samples = context.samples(pick((50, 21, 75), (90, 41, 130), (90, 41, 130)))
        prompts = tuple(sample.token_ids for sample in samples)
        target = number % len(prompts)
        whole = Trial(ask=Ask.SCORE, prompts=prompts, target=target)
        cut = replace(whole, engine=settings(max_batch_tokens=budget))
        workload = samples[target].workload
        yield Case(check=NAME, name=f"budget-{budget}", workload=workload, left=whole, right=cut)


def chunk_sizes(context: CheckContext) -> Sequence[int]:
    """One before, at and one after every period of the engine; 1 and 2 are those of the ratios."""
    window = context.model.sliding_window
    edges = sorted({1, 2, 3, *(edge + d for edge in (window, BLOCK_TOKENS) for d in (-1, 0, 1))})
    more = sorted({*edges, 5, 7, 17, 33, 100, 2 * window - 1, 2 * window + 1, 255, 257})
    return context.size.pick((7, window - 1), edges, more)


CHECK = case_check(
    NAME,
    "one chunk = chunks one before, at and one after every block, window and ratio: scores and cache bytes",
    cases,
    "one chunk = any chunks",
)
