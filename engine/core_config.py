"""Sizes of a running engine, and who may look on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deepinfer.engine.api import Float32Array
from deepinfer.engine.scheduler import Limits
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.options import NO_SPECULATION, Speculation

Observer = Callable[[Sequence, int, Float32Array], None]
"""Shown each sample, a position, and the raw logits row [V], its own copy, of the token chosen there."""


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """Sizes of a running engine; bits never depend on any of them.

    Attributes:
        limits: bounds of a step and of live sequences.
        num_blocks: cache blocks of 128 tokens.
        prefix_caching: keep finished blocks findable for later prompts.
        max_snapshots: most block boundaries that a later prompt can resume at.
        speculation: how many drafted tokens a step verifies.
        asynchronous: plan a step while the one before it runs.
        fewest_in_convoy: sequences from which turns are counted as columns, see ``convoy``.
        graphs: run small steps from recordings, see ``step_graphs``.
    """

    limits: Limits
    num_blocks: int
    prefix_caching: bool = True
    max_snapshots: int = 1024
    speculation: Speculation = NO_SPECULATION
    asynchronous: bool = False
    graphs: bool = False
    fewest_in_convoy: int = 8
