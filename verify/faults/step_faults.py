"""Faults of speculation and asynchrony: rejected rows that stay, wrong acceptance, a worker that rounds anew.

A run with drafts computes some positions more than once, so no two runs can be bisected row by row: the check
names the first token that differs.
"""

from __future__ import annotations

from deepinfer.verify.faults.edit import Edit
from deepinfer.verify.faults.fault import Fault


def _fault(name: str, about: str, place: str, old: str, new: str, check: str) -> Fault:
    module, _, function = place.partition(":")
    return Fault(
        name=name, about=about, edits=(Edit(module=module, function=function, old=old, new=new),), check=check
    )


STEP_FAULTS = (
    _fault(
        "rejected-rows-overwrite-the-window",
        "rings have no room for rows that are taken back",
        "engine.cache.caches:default_ring",
        "config.sliding_window + config.dspark_block_size + 1",
        "config.sliding_window",
        "speculation",
    ),
    _fault(
        "half-of-a-rejected-row",
        "a compressor keeps the half of the last row only, accepted or not",
        "engine.step_records:plan_groups",
        "rows.positions >= rows.last - max_drafts",
        "rows.positions >= rows.last",
        "speculation",
    ),
    _fault(
        "accepts-one-draft-too-many",
        "the draft behind the last right one counts as accepted",
        "engine.speculation.acceptance:num_accepted",
        "int(wrong[0]) if",
        "int(wrong[0]) + 1 if",
        "speculation",
    ),
    _fault(
        "drafted-rows-draw-for-one-position",
        "every row of a sequence draws the words of the first one",
        "engine.step_run:StepRun._sample",
        "sequence.num_tokens + j for",
        "sequence.num_tokens for",
        "speculation",
    ),
    _fault(
        "worker-rounds-upwards",
        "the thread that runs the steps has a floating-point mode of its own",
        "engine.asynchrony:Worker.start",
        "self._pool.submit(work)",
        "self._pool.submit(lambda: (__import__('ctypes').CDLL('libm.so.6').fesetround(0x800), work())[1])",
        "asynchrony",
    ),
)
