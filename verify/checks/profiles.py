"""Does the promise hold in the other profile too: company, chunks and decoding under its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from deepinfer.engine.api import PrefillMode, Profile
from deepinfer.verify.case import Ask, Case, Trial, settings
from deepinfer.verify.case_check import case_check
from deepinfer.verify.checks.batch import fillers
from deepinfer.verify.context import CheckContext

NAME = "profiles"


def cases(context: CheckContext) -> Iterator[Case]:
    """The profile that is not configured (fast is profile B of the specification; R does not exist here)."""
    other = Profile.FAST if context.engine.profile is Profile.STRICT else Profile.STRICT
    profile = settings(profile=other)
    for number in range(context.size.pick(1, 2, 4)):
        sample = context.sample(number, context.size.pick(41, 80, 150))
        alone = Trial(ask=Ask.SCORE, prompts=(sample.token_ids,), engine=profile)
        neighbours = tuple(neighbour.token_ids for neighbour in fillers(context, 6, seed=number))
        together = replace(alone, prompts=(*neighbours, sample.token_ids), target=6)
        cut = replace(alone, engine=(*profile, *settings(max_chunk_tokens=17, num_threads=1)))
        named: dict[str, Any] = {"check": NAME, "workload": sample.workload, "left": alone}
        yield Case(**named, name=f"{other}-batch-{number}", right=together)
        yield Case(**named, name=f"{other}-chunks-{number}", right=cut)
        if context.engine.prefill is not PrefillMode.OFF:
            continue
        generated = replace(
            alone,
            ask=Ask.GENERATE,
            max_tokens=8,
            engine=(*profile, *settings(num_cache_blocks=8)),
        )
        rescored = replace(alone, ask=Ask.RESCORE)
        yield Case(
            check=NAME,
            name=f"{other}-decode-{number}",
            workload=sample.workload,
            left=generated,
            right=rescored,
        )


CHECK = case_check(
    NAME,
    "the other arithmetic profile keeps the promise as well: alone = in company = in chunks = decoded",
    cases,
    "the other profile is invariant too:",
)
