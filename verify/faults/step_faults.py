"""Faults of speculation and asynchrony: rejected rows that stay, wrong acceptance, a worker that rounds anew.

A run with drafts computes some positions more than once; traces leave out the rows of drafts that were wrong,
so that bisect can compare the rest with plain decoding row by row.
"""

from __future__ import annotations

from deepinfer.verify.faults.edit import Edit
from deepinfer.verify.faults.fault import Fault


def _fault(
    name: str, about: str, place: str, old: str, new: str, check: str, op: str = "", tensor: str = ""
) -> Fault:
    module, _, function = place.partition(":")
    edit = Edit(module=module, function=function, old=old, new=new)
    return Fault(name=name, about=about, edits=(edit,), check=check, ops=(op,) if op else (), tensor=tensor)


STEP_FAULTS = (
    _fault(
        "rejected-rows-overwrite-the-window",
        "rings have no room for rows that are taken back",
        "engine.cache.caches:default_ring",
        "config.sliding_window + config.dspark_block_size + 1",
        "config.sliding_window",
        "speculation",
        "sparse_attention",
        "in window",
    ),
    _fault(
        "half-of-a-rejected-row",
        "a compressor keeps the half of the last row only, accepted or not",
        "engine.step_records:plan_groups",
        "rows.positions >= rows.last - max_drafts",
        "rows.positions >= rows.last",
        "speculation",
        "pool_pairs",
        "in ",
    ),
    _fault(
        "accepts-one-draft-too-many",
        "the draft behind the last right one counts as accepted",
        "engine.speculation.acceptance:num_accepted",
        "return place",
        "return place + 1",
        "speculation",
    ),
    _fault(
        "drafted-rows-draw-for-one-position",
        "every row of a sequence draws the words of the first one",
        "engine.drawn_rows:draw",
        "sequence.num_tokens + j for",
        "sequence.num_tokens for",
        "speculation",
        "sample",
        "in words",
    ),
    _fault(
        "worker-rounds-upwards",
        "the thread that runs the steps has a floating-point mode of its own",
        "engine.asynchrony:Worker.start",
        "self._pool.submit(work)",
        "self._pool.submit(lambda: (__import__('ctypes').CDLL('libm.so.6').fesetround(0x800), work())[1])",
        "asynchrony",
        "hc_mix",
        "out",
    ),
)
