"""Does the company change the answer: a sample alone, and in batches of other sizes, places, neighbours."""

from __future__ import annotations

from deepinfer.verify.check import Check
from deepinfer.verify.context import CheckContext, full_requests
from deepinfer.verify.result import CheckResult
from deepinfer.verify.subject import Sample
from deepinfer.verify.tally import Tally

NAME = "batch"
BATCH_SIZES = (2, 3, 7, 16, 33)
# Around one, four, sixteen and thirty-two rows: where tiles of rows begin and end.
FILLER_LENGTHS = (1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63)
SAMPLE_LENGTH = 97


def run(context: CheckContext) -> CheckResult:
    """Compare a sample scored alone with the same sample at each place of each batch."""
    tally = Tally(NAME)
    num_batches = 0
    for round_index, size in enumerate(BATCH_SIZES):
        sample = context.sample(round_index, SAMPLE_LENGTH)
        [alone] = context.base.score(full_requests([sample]))
        for place, index in places(size).items():
            batch = fillers(context, size - 1, seed=num_batches)
            batch.insert(index, sample)
            requests = full_requests(batch)
            together = context.base.score(requests)
            tally.scores(
                f"{sample.sample_id} alone against {place} of a batch of {size}", alone, together[index]
            )
            num_batches += 1
    return tally.result(f"alone = first, middle and last of batches of {', '.join(map(str, BATCH_SIZES))}")


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


CHECK = Check(
    name=NAME,
    about="a sample alone = the same sample first, in the middle and last in batches of 2, 3, 7, 16 and 33",
    run=run,
)
