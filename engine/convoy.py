"""Sequences that decode together, turn behind turn, as columns.

At 64 sequences a host that looks at each of them in every turn takes longer than the device. In a convoy
lengths, limits, tokens and drafts are arrays, and a sequence is told its tokens when something happens to it
or somebody looks. Between two steps every member is in the flight that is in the air, once; so its own count
of that stays right, and the rest is late until told.

A convoy lasts as long as nothing else has to be decided: nobody joins, turns can follow unseen ones, memory
suffices. Then it ends, and the engine loop goes on from sequences that know everything. What is given out,
and what is asked of policy, pool and prefixes, is what the loop would have given out and asked.

Legend: R members, B drafts of a block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Items

import numpy as np

from deepinfer.engine.api import FinishReason
from deepinfer.engine.convoy_loop import Air, Loop, shares_of, stops_of
from deepinfer.engine.emission import Ending, ending
from deepinfer.engine.flight import InFlight
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.buckets import MAX_ROWS
from deepinfer.engine.speculation.drafts import NO_DRAFTS, Drafts, confidences_of
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.speculation.unseen import Unseen
from deepinfer.engine.step_plan import BLOCK_TOKENS, Int64, blocks_for
from deepinfer.engine.step_run import Answer, Boundary
from deepinfer.engine.turns.drawn import Bools, Drawn, LateTokens
from deepinfer.engine.turns.outcome import Outcome
from deepinfer.engine.turns.table import TurnColumns
from deepinfer.engine.turns.turn_records import TurnRecords
from deepinfer.engine.turns.turn_run import TurnResult
from deepinfer.kernels.turn_operands import FROM_DEVICE

_LATE = 96
"""Tokens that a sequence is told late, at most."""


def convoy_of(loop: Loop) -> Convoy | None:
    """A convoy of all that run, if each is in the one turn that is in the air."""
    if len(loop.flights) != 1 or not loop.flights[0].is_turn:
        return None
    flight, drafter = loop.flights[0], loop.turns.turn.drafter
    if drafter is not None and not drafter.drafts_in_turn:
        return None
    members, rows, drafts, strangers = [], [], [], []
    for row, (sequence, _, num_drafts, _) in enumerate(flight.shares):
        if sequence.finish_reason:
            strangers.append((sequence, num_drafts))
        elif not sequence.output_ids or sequence.request.params.num_logprobs:
            return None  # the first record holds the scores of a prompt, others alternatives
        else:
            members.append(sequence)
            rows.append(row)
            drafts.append(num_drafts)
    if len(members) < loop.fewest or len(members) != len(loop.scheduler.running):
        return None
    return Convoy(loop, members, Air(np.array(rows), np.array(drafts), strangers))


class Convoy:
    """See above; arrays have a place for every member, int64 unless said otherwise."""

    def __init__(self, loop: Loop, members: list[Sequence], air: Air) -> None:
        """The first flight is in the air."""
        self._loop, self._members = loop, members
        self._shares = shares_of(members, air.drafts)
        self._names = [sequence.key for sequence in members]
        self._slots = np.array([sequence.slot for sequence in members])
        self._known = np.array([sequence.num_tokens for sequence in members])
        self._most = np.array([sequence.max_tokens for sequence in members])
        self._room = np.array([len(sequence.blocks) for sequence in members]) * BLOCK_TOKENS
        self._contexts = np.array([sequence.draft_from for sequence in members])
        self._ends = np.array([not sequence.request.params.ignore_eos for sequence in members])
        self._asks = np.array([sequence.request.should_stop is not None for sequence in members])
        self._stops = stops_of(members)
        size = 0 if loop.speculation is None else loop.speculation.block_size
        blocks = [sequence.drafts for sequence in members]
        self._sure = confidences_of(blocks, size)
        self._ahead = np.zeros(self._sure.shape, np.int64)
        self._num_ahead = np.array([block.size for block in blocks])
        for place, block in enumerate(blocks):
            self._ahead[place, : block.size] = block.tokens
        self._flights = deque([air])
        self._set_constants()
        self._late = LateTokens(len(members), _LATE)

    def _set_constants(self) -> None:
        """Rows of all members, and drafts of none; who meets these very arrays need not look into them."""
        self._everyone = np.arange(len(self._members))
        self._none = np.zeros(len(self._members), np.int64)

    def step(self) -> TurnRecords | None:
        """Start the next turn, land the one in the air; None if the engine loop has to do that."""
        loop = self._loop
        if len(self._members) < loop.fewest or (loop.scheduler.waiting and loop.scheduler.free_slots):
            return None
        going = self._known + 1 < self._most  # the others surely end
        count = int(np.count_nonzero(going))
        if count == 0 or not self._start(going, count):
            return None
        return self._land()

    def _start(self, going: Bools, count: int) -> bool:
        """Start a turn of those that go on; false if it cannot follow."""
        loop, ahead = self._loop, self._loop.flights[-1]
        drafting, unseen, num_drafted = Drafting.PAUSED, Unseen(0), 0
        if loop.speculation is not None:
            policy = loop.speculation.policy
            drafting = policy.mode(count)
            if ahead.drafting is Drafting.ON:
                sure, there = self._sure, self._num_ahead > 0
                if count < len(self._members):
                    sure, there = sure[going], there[going]
                unseen = policy.unseen_of(sure, there, ahead.num_drafted)
            num_drafted = policy.block(count) if drafting is Drafting.ON else 0
        total = count * unseen.most if unseen.total is None else unseen.total
        if count + total > min(loop.scheduler.limits.max_rows, MAX_ROWS):
            return False
        if not self._has_room(going, unseen.most):
            return False
        air = self._flights[-1]
        is_whole = count == len(self._members)
        drafts = self._drafts(going, unseen.most)
        if drafts is not air.drafts and not np.array_equal(drafts, air.drafts):
            self._shares = shares_of(self._members, drafts)
        shares = tuple(self._shares)
        rows = self._everyone
        columns = TurnColumns(
            slots=self._slots, drafts=drafts, starts=np.full(len(drafts), FROM_DEVICE),
            ends=self._known + 1 + air.drafts, contexts=self._contexts,
        )  # fmt: skip
        if not is_whole:
            shares = tuple(share for share, goes in zip(shares, going.tolist(), strict=True) if goes)
            rows, columns = np.where(going, np.cumsum(going) - 1, -1), columns.of(going)
        work = loop.turns.ready_left(shares, columns, drafting, num_drafted, unseen.total, loop.saved)
        num_drafts = int(drafts.sum()) if unseen.total is None else unseen.total
        wait = loop.runner.start(work)
        loop.flights.append(InFlight(shares, num_drafts, drafting, num_drafted, wait, True))
        self._flights.append(Air(rows, drafts, []))
        stats = loop.scheduler.stats
        stats.num_steps += 1
        stats.num_ahead += 1
        stats.num_unseen += 1
        stats.num_rows += count + int(drafts.sum())
        return True

    def _drafts(self, going: Bools, most: int) -> Int64:
        """Drafts that each has rows for; the very array of the turn in the air where nobody has any."""
        if most == 0:
            return self._none
        return np.where(going, np.minimum(most, self._room - self._known), 0)

    def _has_room(self, going: Bools, num_drafts: int) -> bool:
        """Get blocks for who needs one, and for drafts if some are free; false if a row gets none."""
        pool, last = self._loop.scheduler.pool, self._known + 1 + self._flights[-1].drafts
        surely, maybe = np.minimum(last, self._most - 1), np.minimum(last + num_drafts, self._most)
        for place in np.flatnonzero((np.maximum(surely, maybe) > self._room) & going).tolist():
            sequence = self._members[place]
            for reach, is_needed in ((surely, True), (maybe, False)):
                wanted = blocks_for(int(reach[place])) - len(sequence.blocks)
                if wanted <= 0 or not (is_needed or (num_drafts and wanted <= pool.num_free)):
                    continue
                blocks = pool.allocate(wanted)
                if blocks is None:
                    return False
                sequence.blocks += blocks
            self._room[place] = len(sequence.blocks) * BLOCK_TOKENS
            self._loop.turns.refresh(sequence)
        return True

    def _land(self) -> TurnRecords:
        loop, flight, air = self._loop, self._loop.flights.popleft(), self._flights.popleft()
        try:
            result = flight.wait()
        finally:
            for sequence, num_drafts in air.strangers:
                sequence.num_in_flight -= 1
                sequence.num_drafts_in_flight -= num_drafts
            behind = self._flights[0]
            if behind.rows is not self._everyone:
                for place in np.flatnonzero(behind.rows < 0).tolist():
                    self._members[place].num_in_flight -= 1
            if air.drafts is not behind.drafts and not np.array_equal(air.drafts, behind.drafts):
                for sequence, num_drafts in zip(self._members, behind.drafts.tolist(), strict=True):
                    sequence.num_drafts_in_flight = num_drafts
            loop.scheduler.land()
        assert isinstance(result, TurnResult), "a flight of a convoy is a turn"
        outcome = result.outcome
        drawn = Drawn.of(outcome, air.rows, result.width, self._ends, loop.eos_token_id, self._stops)
        if not drawn.is_sound(outcome):
            self.tell()
            _ = result.answers  # says which one, and raises
        if loop.speculation is not None:
            size = len(flight.shares)
            given = (flight.drafting, flight.num_drafts, outcome.count[:size], outcome.accepted[:size])
            loop.speculation.landed_turn(*given, drawn.verified, self._sure, result.is_typical)
        before = self._known
        self._note(flight.drafting, outcome, air.rows, drawn)
        endings = self._endings(drawn)
        if loop.saved[0] and result.boundaries:
            self._remember(result.boundaries, endings)
        given_out = drawn.counts.copy()
        for place, end in endings.items():
            given_out[place] = end.num_tokens
        records = TurnRecords.of(self._names, before, drawn, given_out, outcome, self._said(endings))
        if endings:
            self._leave(endings)
        return records

    def _note(self, drafting: Drafting, outcome: Outcome, rows: Int64, drawn: Drawn) -> None:
        if not self._late.has_room(drawn.tokens.shape[1]):
            self.tell()
            self._late.clear()
        self._late.note(drawn)
        self._known = self._known + drawn.counts
        if drafting is Drafting.PAUSED:
            self._contexts = self._known - 1
        size = outcome.drafts.shape[1]
        self._num_ahead[:] = size
        if size:
            self._ahead[:, :size], self._sure[:, :size] = outcome.drafts[rows], outcome.confidences[rows]
            self._sure[:, size:] = 0.0

    def _endings(self, drawn: Drawn) -> dict[int, Ending]:
        """Who ends with the tokens that were just noted, and where."""
        loop, found = self._loop, {}
        is_over = drawn.is_stopped | (self._known >= self._most)
        for place in np.flatnonzero(is_over | self._asks).tolist():
            self._tell_one(place)
            self._members[place].is_over = bool(is_over[place])
            tokens = tuple(drawn.tokens[place, : drawn.counts[place]].tolist())
            answer = Answer(self._shares[place], tokens, 0, 0, bool(is_over[place]))
            end = ending(answer, loop.eos_token_id, loop.max_length)
            if end.reason is not None:
                found[place] = end
        return found

    def _said(self, endings: Mapping[int, Ending]) -> dict[int, tuple[FinishReason, int, int]]:
        """See ``TurnRecords.ends``."""
        told = {}
        for place, end in endings.items():
            sequence = self._members[place]
            assert end.reason is not None, "it ends"
            told[place] = end.reason, sequence.num_hit_tokens, sequence.num_preemptions
        return told

    def _remember(self, boundaries: Items[Boundary], endings: Mapping[int, Ending]) -> None:
        places = {id(sequence): place for place, sequence in enumerate(self._members)}
        computed = {}
        for sequence in (found.sequence for found in boundaries):
            place = places.get(id(sequence))
            if place is not None:
                self._tell_one(place)
                valid = endings[place].num_computed if place in endings else sequence.num_computed
                computed[id(sequence)] = valid
        self._loop.remember(boundaries, computed)

    def _leave(self, endings: Mapping[int, Ending]) -> None:
        """Those that have ended are no members; they are strangers to the flight that they are in."""
        (air,) = self._flights
        kept = np.ones(len(self._members), np.bool_)
        for place, end in endings.items():
            kept[place], sequence = False, self._members[place]
            if air.rows[place] >= 0:
                air.strangers.append((sequence, int(air.drafts[place])))
            assert end.reason is not None, "it ends"
            self._loop.forget(sequence, end.reason)
        here = np.flatnonzero(kept).tolist()
        self._members = [self._members[place] for place in here]
        self._shares = [self._shares[place] for place in here]
        self._names = [self._names[place] for place in here]
        self._slots, self._known, self._most = self._slots[kept], self._known[kept], self._most[kept]
        self._room, self._contexts = self._room[kept], self._contexts[kept]
        self._ends, self._asks, self._stops = self._ends[kept], self._asks[kept], stops_of(self._members)
        self._ahead, self._sure, self._num_ahead = self._ahead[kept], self._sure[kept], self._num_ahead[kept]
        self._flights = deque([Air(air.rows[kept], air.drafts[kept], air.strangers)])
        self._set_constants()
        self._late.keep(kept)

    def tell(self) -> None:
        """Let all members know their tokens."""
        for place in range(len(self._members)):
            self._tell_one(place)

    def _tell_one(self, place: int) -> None:
        tokens = self._late.take(place)
        if tokens:
            size = int(self._num_ahead[place])
            drafts = Drafts(self._ahead[place, :size].copy(), self._sure[place, :size].copy())
            self._members[place].take_turns(tokens, drafts if size else NO_DRAFTS, int(self._contexts[place]))
