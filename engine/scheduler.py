"""Continuous batching: which sequences run in the next step, with how many rows each (engine.md section 3).

Every step mixes one row for each sequence that is decoding with chunks of prompts: kernels make a row
independent of its company, so nothing is gained by keeping the two apart, and neither can starve the other.
Decoding comes first, shortest output first; what is left of the row budget goes to prompts in the order of
their arrival, and what is left then to drafts. Memory is given in whole blocks; when none is left, the
sequence with the longest output loses its caches and returns to the front of the queue, to be computed again.

A step can be planned while the one before it runs: what that one will make known is counted as known. Its
sequences keep slot and blocks until it has landed, whatever becomes of them meanwhile, and nobody is
preempted before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple

from deepinfer.engine.cache.block_pool import BlockPool
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.drafts import NO_DRAFTS
from deepinfer.engine.speculation.policy import DraftPolicy
from deepinfer.engine.step_plan import BLOCK_TOKENS, blocks_for

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


class Share(NamedTuple):
    """What a sequence gets of a step; a tuple, which is made in a third of the time of a frozen dataclass.

    Attributes:
        sequence: the sequence.
        num_rows: rows of known positions.
        num_drafts: drafted rows behind them.
        is_complete: whether all its known positions are computed after the step, which then gives a token.
    """

    sequence: Sequence
    num_rows: int
    num_drafts: int
    is_complete: bool

    @property
    def is_decoding(self) -> bool:
        """Whether its only known row is the one that gives the next token."""
        return self.is_complete and self.num_rows == 1

    def with_drafts(self, num_drafts: int) -> Share:
        """The same with so many drafts."""
        return Share(self.sequence, self.num_rows, num_drafts, self.is_complete)


@dataclass
class SchedulerStats:
    """Counters since the start.

    ``num_ahead`` are steps that were planned while another ran, ``num_unseen`` those that also started then.
    """

    num_steps: int = 0
    num_rows: int = 0
    num_preemptions: int = 0
    num_ahead: int = 0
    num_unseen: int = 0


@dataclass
class Scheduler:
    """Queues of sequences; owns slots, asks the pool for blocks."""

    limits: Limits
    pool: BlockPool
    num_blocks: int
    admit: Admit
    draft_policy: DraftPolicy | None = None
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    stats: SchedulerStats = field(default_factory=SchedulerStats)
    free_slots: list[int] = field(default_factory=list)
    retired: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        """One slot per sequence that may run."""
        self.free_slots = list(range(self.limits.max_sequences - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of this length can ever hold all its blocks."""
        return blocks_for(num_tokens) <= self.num_blocks

    def next_step(self) -> list[Share] | None:
        """Shares of the next step without drafts, in packed order; empty if there is nothing to do.

        None while a step is in flight means that a sequence must be preempted first: ask again once it has
        landed.
        """
        planned: list[Share] = []
        budget = self.limits.max_rows
        decoding, reading = self._ordered()
        for _, _, sequence in decoding:
            if sequence.slot >= 0 and budget > 0:
                if sequence.num_missing_blocks and not self._reserve(sequence, planned):
                    if self._is_in_flight:
                        return None
                    continue
                planned.append(Share(sequence, 1, 0, True))
                budget -= 1
        for _, sequence in reading:
            if sequence.slot >= 0 and budget > 0:  # else it was preempted just now
                budget -= self._take(sequence, budget, planned)
        while self.waiting and budget > 0 and self._admit_next():
            budget -= self._take(self.running[-1], budget, planned)
        return planned

    def _ordered(self) -> tuple[list[tuple[int, int, Sequence]], list[tuple[int, Sequence]]]:
        """Those that decode in their order, behind what decides it, and those that read prompts in theirs."""
        decoding, reading = [], []
        for s in self.running:  # every sequence, every step: no call for what a comparison says
            remaining = s.num_tokens - s.num_computed - s.num_in_flight
            if remaining > 1:
                reading.append((s.order, s))
            elif (remaining == 1 or s.num_in_flight) and (
                s.num_tokens + 1 < s.max_tokens or not s.surely_ends
            ):
                decoding.append((len(s.output_ids), s.order, s))
        decoding.sort()
        reading.sort()
        return decoding, reading

    def add_drafts(self, planned: Items[Share]) -> list[Share]:
        """The shares with the drafts that the policy grants; called when the step is about to start."""
        self.stats.num_steps += bool(planned)
        self.stats.num_rows += sum(share.num_rows for share in planned)
        if self.draft_policy is None:
            return list(planned)
        room = self.limits.max_rows - sum(share.num_rows for share in planned)
        able = [share for share in planned if share.is_decoding]
        granted = self.draft_policy.shares([share.sequence for share in able], room)
        drafts = {
            id(share): self._fitting(share.sequence, count)
            for share, count in zip(able, granted, strict=True)
        }
        self.stats.num_rows += sum(drafts.values())
        return [share.with_drafts(drafts.get(id(share), 0)) for share in planned]

    def add_unseen_drafts(self, planned: Items[Share], num_drafts: int) -> list[Share]:
        """The same before the step in flight has landed: so many drafts each, whatever they are."""
        self.stats.num_steps += 1
        self.stats.num_unseen += 1
        if num_drafts == 0:
            self.stats.num_rows += sum([share.num_rows for share in planned])
            return list(planned)
        shares = []
        for share in planned:
            sequence = share.sequence
            most = num_drafts if sequence.num_in_flight else min(num_drafts, sequence.num_useful_drafts)
            shares.append(share.with_drafts(self._fitting(sequence, most)) if most else share)
        self.stats.num_rows += sum(share.num_rows + share.num_drafts for share in shares)
        return shares

    def _fitting(self, sequence: Sequence, num_drafts: int) -> int:
        """How many of the drafts fit the blocks of the sequence, with free ones but at nobody's expense."""
        if num_drafts == 0:
            return 0
        longest = min(sequence.most_tokens + num_drafts, sequence.max_tokens)
        missing = blocks_for(longest) - len(sequence.blocks)
        if missing > 0 and missing <= self.pool.num_free:
            sequence.blocks += self.pool.allocate(missing) or []
        return min(num_drafts, len(sequence.blocks) * BLOCK_TOKENS - sequence.num_tokens)

    def release(self, sequence: Sequence) -> None:
        """Give back everything a sequence holds and forget it; later, if it is in the step in flight."""
        if sequence.num_in_flight:
            self.retired.append(sequence)
        else:
            self._drop(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @property
    def _is_in_flight(self) -> bool:
        """Whether the step in flight holds anything."""
        return bool(self.retired) or any(sequence.num_in_flight for sequence in self.running)

    def land(self) -> None:
        """A step has ended: what retired sequences held is free, unless the next one has them too."""
        for sequence in self.retired:
            if not sequence.num_in_flight:
                self._drop(sequence)
        self.retired = [sequence for sequence in self.retired if sequence.num_in_flight]

    def _take(self, sequence: Sequence, budget: int, planned: list[Share]) -> int:
        remaining = sequence.num_remaining
        rows = min(remaining, budget, self.limits.max_chunk or budget)
        planned.append(Share(sequence, rows, 0, rows == remaining))
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

    def _reserve(self, sequence: Sequence, planned: list[Share]) -> bool:
        """Make sure a decoding sequence has room for its next row.

        False if it had to go itself, or if somebody has to and a step is in flight.
        """
        while sequence.num_missing_blocks:
            blocks = self.pool.allocate(sequence.num_missing_blocks)
            if blocks is not None:
                sequence.blocks += blocks
                break
            if self._is_in_flight:
                return False
            taken = {id(share.sequence) for share in planned}
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
        sequence.drafts.wait()  # until then its contexts are read, in a slot that is somebody else's next
        sequence.drafts, sequence.draft_from = NO_DRAFTS, 0
        if sequence.slot >= 0:
            self.free_slots.append(sequence.slot)
            sequence.slot = -1
