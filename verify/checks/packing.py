"""Do packed caches lose anything: records read from their bytes, and the values they were packed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from deepinfer.engine.api import CacheFormat
from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext

NAME = "packing"


def cases(context: CheckContext) -> Iterator[Case]:
    """Prefill in chunks and decode, reading caches as packed bytes and as float32 round trips."""
    for number in range(context.size.pick(1, 2, 6)):
        sample = context.sample(number, context.size.pick(40, 150, 200) + number)
        packed = Trial(
            ask=Ask.SCORE, prompts=(sample.token_ids,), engine=settings(max_chunk_tokens=29 + number)
        )
        yield _case(f"chunks-{number}", sample.workload, packed)
    for number in range(context.size.pick(1, 2, 4)):
        sample = context.sample(number, 60 + 30 * number)
        packed = Trial(
            ask=Ask.GENERATE,
            prompts=(sample.token_ids,),
            max_tokens=context.size.pick(5, 24, 40),
            engine=settings(num_cache_blocks=8, prefix_caching=False),
        )
        yield _case(f"decode-{number}", sample.workload, packed)


def _case(name: str, workload: str, packed: Trial) -> Case:
    unpacked = replace(packed, unpacked=True)
    return Case(check=NAME, name=name, workload=workload, left=packed, right=unpacked)


def _absent(context: CheckContext) -> str | None:
    if context.open_unpacked is None:
        return "this engine has packed caches only"
    if context.engine.cache_format is CacheFormat.NONE:
        return "caches of format none are not packed"
    return None


CHECK = case_check(
    NAME,
    "caches read from packed bytes = caches that keep the rounded values as float32",
    cases,
    "packed = dequantised",
    absent=_absent,
)
