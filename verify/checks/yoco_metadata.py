"""Truncated prefill, tier *metadata*: do mask and compact plan the same kept rows; no model runs.

What the engine plans for a step is held against model.md section 10.2 spelled out here a second time, for
thousands of prompts: lengths around the window and the kept count, random ones, chunks, neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from deepinfer.engine.api import PrefillMode
from deepinfer.verify.check import Check, Tier
from deepinfer.verify.checks.yoco import not_applicable
from deepinfer.verify.context import CheckContext
from deepinfer.verify.result import CheckResult
from deepinfer.verify.subject import DecoderRows, PlannedChunk
from deepinfer.verify.tally import Tally

NAME = "yoco-metadata"
NUM_RANDOM_STEPS = 650
MAX_RANDOM_TOKENS = 320
PLANNED_ARRAYS = ("kept", "positions", "window", "slots", "visible")


def run(context: CheckContext) -> CheckResult:
    """Hold the plans of both modes against the definition, and the kept rows of mask against compact."""
    if not context.model.supports_truncated_prefill:
        return not_applicable(NAME)
    window = context.model.sliding_window
    tally = Tally(NAME)
    num_chunks = 0
    num_random = context.size.pick(min(80, NUM_RANDOM_STEPS), NUM_RANDOM_STEPS, NUM_RANDOM_STEPS)
    for keep, chunks in steps(window, context.model.min_keep, num_random):
        case = f"keep {keep}, window {window}, {describe(chunks)}"
        masked = context.plan_rows(chunks, keep, PrefillMode.MASK)
        compact = context.plan_rows(chunks, keep, PrefillMode.COMPACT)
        compare(
            tally, f"mask against definition, {case}", masked, defined_rows(chunks, keep, window, masked=True)
        )
        compare(tally, f"compact against definition, {case}", compact, defined_rows(chunks, keep, window))
        compare(tally, f"mask against compact, {case}", kept_of(masked, chunks, keep), compact)
        tally.num_inspected += len(masked.positions) + len(compact.positions)
        num_chunks += len(chunks)
    return tally.result(f"{num_chunks:,} chunks of prompts, {tally.num_inspected:,} planned rows")


def steps(
    window: int, min_keep: int, num_random: int = NUM_RANDOM_STEPS
) -> Iterator[tuple[int, list[PlannedChunk]]]:
    """Kept counts and the chunks of one step; the same ones on every run."""
    for keep in sorted({min_keep, min_keep + 1, max(min_keep, 2 * window), min_keep + 3 * window}):
        edges = {1, 2, window - 1, window, window + 1, keep - 1, keep, keep + 1, 2 * keep + window + 1}
        edges |= {keep + window - 1, keep + window, keep + window + 1}
        for num_tokens in sorted(edges):
            yield keep, [PlannedChunk(start=0, end=num_tokens, num_tokens=num_tokens, base=0)]
            # One token to each side of the place where the kept rows begin.
            for cut in {num_tokens - keep - 1, num_tokens - keep, num_tokens - keep + 1} & set(
                range(1, num_tokens)
            ):
                yield keep, [PlannedChunk(start=0, end=cut, num_tokens=num_tokens, base=0)]
                yield keep, [PlannedChunk(start=cut, end=num_tokens, num_tokens=num_tokens, base=0)]
    choose = random.Random(20)
    for _ in range(num_random):
        chunks, base = [], 0
        for _ in range(3):
            num_tokens = choose.randint(1, MAX_RANDOM_TOKENS)
            start = choose.choice([0, choose.randrange(num_tokens)])
            end = choose.choice([num_tokens, choose.randint(start + 1, num_tokens)])
            chunks.append(PlannedChunk(start=start, end=end, num_tokens=num_tokens, base=base))
            base += num_tokens + 2 * choose.randrange(3)
        yield choose.randint(min_keep, min_keep + window), chunks


def defined_rows(
    chunks: Sequence[PlannedChunk], keep: int, window: int, *, masked: bool = False
) -> DecoderRows:
    """Rows of model.md section 10.2: p sees ``[max(p - W + 1, lo), p]``, and nothing if p < lo.

    ``mask`` computes every row, ``compact`` those from lo on; compressed entries are never narrowed.
    """
    parts: list[tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], ...]] = []
    num_packed = 0
    for chunk in chunks:
        low = max(0, chunk.num_tokens - keep)
        first = chunk.start if masked else max(chunk.start, low)
        positions = np.arange(first, max(first, chunk.end), dtype=np.int64)
        seen = positions[:, None] - window + 1 + np.arange(window, dtype=np.int64)
        is_seen = (seen >= low) & (positions >= low)[:, None]
        parts.append(
            (
                num_packed + positions - chunk.start,
                positions,
                np.where(is_seen, chunk.base + seen, -1),
                np.where(positions >= low, chunk.base + positions, -1),
                positions + 1,
            )
        )
        num_packed += chunk.end - chunk.start
    kept, positions, slots_seen, slots, visible = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    return DecoderRows(kept=kept, positions=positions, window=slots_seen, slots=slots, visible=visible)


def kept_of(rows: DecoderRows, chunks: Sequence[PlannedChunk], keep: int) -> DecoderRows:
    """The rows of mask that compact computes too."""
    low = [chunk.num_tokens - keep for chunk in chunks for _ in range(chunk.start, chunk.end)]
    chosen = rows.positions >= np.array(low, dtype=np.int64)[rows.kept]
    return DecoderRows(**{array: getattr(rows, array)[chosen] for array in PLANNED_ARRAYS})


def compare(tally: Tally, case: str, left: DecoderRows, right: DecoderRows) -> None:
    """Compare two plans array by array."""
    for array in PLANNED_ARRAYS:
        tally.arrays(case, array, getattr(left, array), getattr(right, array))


def describe(chunks: Sequence[PlannedChunk]) -> str:
    """The chunks of a step in words."""
    return " beside ".join(f"[{c.start}, {c.end}) of a prompt of {c.num_tokens}" for c in chunks)


CHECK = Check(
    name=NAME,
    about="truncated prefill: rows, window slots and positions of mask = those of compact, without a model",
    run=run,
    tier=Tier.METADATA,
    needs_model=False,
)
