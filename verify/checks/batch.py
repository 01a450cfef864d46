"""Does the company change the answer: a sample alone, and in batches of other sizes, places, neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from deepinfer.verify.case import Ask, Case, Trial
from deepinfer.verify.case_check import case_check
from deepinfer.verify.context import CheckContext
from deepinfer.verify.subject import Sample

NAME = "batch"
# Around one, four, sixteen and thirty-two rows: where tiles of rows begin and end.
FILLER_LENGTHS = (1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63)
SWEPT_LENGTHS = (1, 2, 8, 9, 10, 63, 64, 65, 127, 128, 129)


def cases(context: CheckContext) -> Iterator[Case]:
    """A sample alone against each place of each batch, growing neighbours, other neighbours, and decoding."""
    pick = context.size.pick
    sizes = pick((5,), (2, 3, 7, 16, 33), (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64))
    length = pick(41, 97, 97)
    for number, size in enumerate(sizes):
        sample = context.sample(number, length)
        alone = Trial(ask=Ask.SCORE, prompts=(sample.token_ids,))
        for place, index in places(size).items():
            neighbours = fillers(context, size - 1, seed=3 * number + index)
            yield _case(f"{size}-{place}", sample, alone, neighbours, index)
    sample = context.sample(1, pick(33, 97, 97))
    alone = Trial(ask=Ask.SCORE, prompts=(sample.token_ids,))
    for grown in SWEPT_LENGTHS[:: pick(8, 2, 1)]:
        yield _case(f"grown-{grown}", sample, alone, [context.sample(2, grown, start=57)], 0)
    for number in range(pick(1, 2, 6)):
        other = context.sample(3 + number, 64, start=311 * number + 5)
        yield _case(f"content-{number}", sample, alone, [other], 1)
    yield from _decoding(context)


def _decoding(context: CheckContext) -> Iterator[Case]:
    """The same while generating, with greedy neighbours that are longer and shorter."""
    for number, size in enumerate(context.size.pick((3,), (2, 5), (2, 3, 5, 9, 17))):
        sample = context.sample(number, 50)
        alone = Trial(
            ask=Ask.GENERATE,
            prompts=(sample.token_ids,),
            max_tokens=context.size.pick(5, 24, 48),
        )
        neighbours = [context.sample(number + 1 + i, 20 + 23 * i, start=77 * i) for i in range(size - 1)]
        yield _case(f"decode-{size}", sample, alone, neighbours, size // 2)


def _case(name: str, sample: Sample, alone: Trial, neighbours: list[Sample], index: int) -> Case:
    prompts = [neighbour.token_ids for neighbour in neighbours]
    prompts.insert(index, sample.token_ids)
    together = Trial(ask=alone.ask, prompts=tuple(prompts), target=index, max_tokens=alone.max_tokens)
    return Case(check=NAME, name=name, workload=sample.workload, left=alone, right=together)


def places(size: int) -> dict[str, int]:
    """Names and indices of the places tried in a batch; a pair has no middle."""
    named = {"first": 0, "middle": size // 2, "last": size - 1}
    return {name: index for name, index in named.items() if name != "middle" or 0 < index < size - 1}


def fillers(context: CheckContext, count: int, seed: int) -> list[Sample]:
    """Neighbours of varied length cut from other parts of the documents; ``seed`` shifts the choice."""
    return [
        context.sample(
            index + seed + 1,
            FILLER_LENGTHS[(index + seed) % len(FILLER_LENGTHS)],
            start=200 + 41 * index + 101 * seed,
        )
        for index in range(count)
    ]


CHECK = case_check(
    NAME,
    "a sample alone = the same sample first, in the middle and last in batches, beside neighbours of other "
    "lengths and contents, scored and decoded",
    cases,
    "alone = in company",
)
