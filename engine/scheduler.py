"""Continuous batching: which sequences run in the next step, with how many rows each (engine.md section 3).

Every step mixes one row for each sequence that is decoding with chunks of prompts: kernels make a row
independent of its company, so nothing is gained by keeping the two apart, and neither can starve the other.
Decoding comes first, shortest output first; what is left of the row budget goes to prompts in the order of
their arrival. Memory is given in whole blocks; when none is left, the sequence with the longest output loses
its caches and returns to the front of the queue, to be computed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.step_plan import blocks_for

Admit = Callable[[Sequence], None]
"""Called when a sequence gets its slot; may give it cached blocks and progress."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a step and of memory.

    Attributes:
        max_rows: rows of a step.
        max_chunk: rows of one sequence in a step, None for no limit.
        max_sequences: sequences that hold caches at a time; at most ``max_rows``, so that each can decode.
    """

    max_rows: int
    max_chunk: int | None
    max_sequences: int


@dataclass
class SchedulerStats:
    """Counters since the start."""

    num_steps: int = 0
    num_rows: int = 0
    num_preemptions: int = 0


@dataclass
class Scheduler:
    """Queues of sequences; owns slots, asks the pool for blocks."""

    limits: Limits
    pool: BlockPool
    num_blocks: int
    admit: Admit
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    stats: SchedulerStats = field(default_factory=SchedulerStats)
    free_slots: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """One slot per sequence that may run."""
        self.free_slots = list(range(self.limits.max_sequences - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of this length can ever hold all its blocks."""
        return blocks_for(num_tokens) <= self.num_blocks

    def next_step(self) -> list[tuple[Sequence, int]]:
        """Sequences of the next step with their rows, in packed order; empty if there is nothing to do."""
        planned: list[tuple[Sequence, int]] = []
        budget = self.limits.max_rows
        decoding = sorted(
            (s for s in self.running if s.num_remaining == 1), key=lambda s: (s.num_emitted, s.order)
        )
        for sequence in decoding:
            if sequence.slot >= 0 and budget > 0 and self._reserve(sequence, planned):
                planned.append((sequence, 1))
                budget -= 1
        for sequence in sorted(self.running, key=lambda s: s.order):
            if sequence.num_remaining > 1 and budget > 0:
                budget -= self._take(sequence, budget, planned)
        while self.waiting and budget > 0 and self._admit_next():
            budget -= self._take(self.running[-1], budget, planned)
        if planned:
            self.stats.num_steps += 1
            self.stats.num_rows += sum(rows for _, rows in planned)
        return planned

    def release(self, sequence: Sequence) -> None:
        """Give back everything a sequence holds and forget it."""
        self._drop(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _take(self, sequence: Sequence, budget: int, planned: list[tuple[Sequence, int]]) -> int:
        rows = min(sequence.num_remaining, budget, self.limits.max_chunk or budget)
        planned.append((sequence, rows))
        return rows

    def _admit_next(self) -> bool:
        """Move the front of the queue into the running set if its slot and all its blocks can be had."""
        sequence = self.waiting[0]
        if not self.free_slots:
            return False
        sequence.slot = self.free_slots.pop()
        self.admit(sequence)
        blocks = self.pool.allocate(sequence.num_missing_blocks)
        if blocks is None:
            self._drop(sequence)
            return False
        sequence.blocks += blocks
        sequence.num_hit_tokens += sequence.num_computed  # once, however often it had to wait
        self.waiting.popleft()
        self.running.append(sequence)
        return True

    def _reserve(self, sequence: Sequence, planned: list[tuple[Sequence, int]]) -> bool:
        """Make sure a decoding sequence has room for its next row; false if it had to go itself."""
        while sequence.num_missing_blocks:
            blocks = self.pool.allocate(sequence.num_missing_blocks)
            if blocks is not None:
                sequence.blocks += blocks
                break
            taken = {id(other) for other, _ in planned}
            victims = [s for s in self.running if id(s) not in taken]
            victim = max(victims, key=lambda s: (s.num_emitted, s.order))
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._drop(sequence)
        sequence.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)

    def _drop(self, sequence: Sequence) -> None:
        """Free slot and blocks; what was computed is forgotten (blocks in the prefix tree stay findable)."""
        for block in reversed(sequence.blocks):
            self.pool.release(block)
        sequence.blocks = []
        sequence.num_computed = 0
        if sequence.slot >= 0:
            self.free_slots.append(sequence.slot)
            sequence.slot = -1
