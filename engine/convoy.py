"""Sequences that decode together, turn behind turn, as columns.

At 64 sequences a host that looks at each of them in every turn takes longer than the device. In a convoy all
have one known token a turn, so what changes is the same for all: lengths, limits and tokens are arrays, and a
sequence is told its tokens when something happens to it or somebody looks. Between two steps every member is
in the flight that is in the air, once; so its own count of that stays right, and the rest is late until told.

A convoy lasts as long as nothing else has to be decided: nobody joins, nothing is drafted, memory suffices.
Then it ends, and the engine loop goes on from sequences that know everything.

Legend: R members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from deepinfer.engine.api import FinishReason
from deepinfer.engine.asynchrony import Runner
from deepinfer.engine.emission import ending
from deepinfer.engine.flight import InFlight
from deepinfer.engine.scheduler import Scheduler, Share
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.control import SpeculationControl
from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.step_plan import BLOCK_TOKENS, Int64, blocks_for
from deepinfer.engine.step_run import Answer, Boundary
from deepinfer.engine.stopping import is_stop_token
from deepinfer.engine.turns.player import TurnPlayer
from deepinfer.engine.turns.table import TurnColumns
from deepinfer.engine.turns.turn_records import TurnRecords
from deepinfer.engine.turns.turn_run import TurnResult
from deepinfer.kernels.turn_operands import FROM_DEVICE

_LATE = 64
"""Tokens that a sequence is told late, at most."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a convoy takes from the engine loop.

    Attributes:
        turns, runner, scheduler, speculation: see ``EngineCore``.
        flights: what is in the air, the oldest first; shared with the loop.
        saved: which rings are kept at block ends, see ``TurnRun``.
        eos_token_id, max_length: what ends a sequence.
        forget: a sequence has ended, for a reason.
        remember: makes blocks findable, see ``EngineCore``.
    """

    turns: TurnPlayer
    runner: Runner
    scheduler: Scheduler
    speculation: SpeculationControl | None
    flights: deque[InFlight]
    saved: tuple[int, bool]
    eos_token_id: int
    max_length: int
    forget: Callable[[Sequence, FinishReason], None]
    remember: Callable[[Items[Boundary], Mapping[int, int]], None]


def convoy_of(loop: Loop) -> Convoy | None:
    """A convoy of all that run, if each is in the one turn that is in the air, and that drafts nothing."""
    if len(loop.flights) != 1:
        return None
    flight = loop.flights[0]
    if not flight.is_turn or flight.num_drafts or flight.drafting is Drafting.ON:
        return None
    members, rows, strangers = [], [], []
    for row, (sequence, *_) in enumerate(flight.shares):
        if sequence.finish_reason:
            strangers.append(sequence)
        elif not sequence.output_ids or sequence.request.params.num_logprobs:
            return None  # the first record holds the scores of a prompt, others alternatives
        else:
            members.append(sequence)
            rows.append(row)
    if not members or len(members) != len(loop.scheduler.running):
        return None
    return Convoy(loop, members, np.array(rows), strangers)


class Convoy:
    """See above; arrays have a place for every member, int64 unless said otherwise.

    A flight has ``rows`` [R] of the members in its turn, -1 for those that are not in it, and strangers,
    which have ended since it began.
    """

    def __init__(self, loop: Loop, members: list[Sequence], rows: Int64, strangers: list[Sequence]) -> None:
        """The first flight is in the air."""
        self._loop, self._members = loop, members
        self._shares = [Share(sequence, 1, 0, True) for sequence in members]
        self._names = [sequence.key for sequence in members]
        self._slots = np.array([sequence.slot for sequence in members])
        self._known = np.array([sequence.num_tokens for sequence in members])
        self._most = np.array([sequence.max_tokens for sequence in members])
        self._room = np.array([len(sequence.blocks) for sequence in members]) * BLOCK_TOKENS
        self._contexts = np.array([sequence.draft_from for sequence in members])
        self._ends = np.array([not sequence.request.params.ignore_eos for sequence in members])
        self._watched = np.array(
            [bool(s.request.params.stop_token_ids or s.request.should_stop) for s in members]
        )
        self._flights = deque([(rows, strangers)])
        self._late = np.zeros((len(members), _LATE), np.int64)
        self._told = np.zeros(len(members), np.int64)
        self._num_late = self._last_paused = 0  # turns that are noted, and the last one without contexts

    def step(self) -> TurnRecords | None:
        """Start the next turn, land the one in the air; None if the engine loop has to do that."""
        loop, count = self._loop, len(self._members)
        if count == 0 or (loop.scheduler.waiting and loop.scheduler.free_slots):
            return None
        going = self._known + 1 < self._most  # the others surely end
        if not going.all():
            count = int(going.sum())
        drafting = Drafting.PAUSED if loop.speculation is None else loop.speculation.policy.mode(count)
        if count == 0 or drafting is Drafting.ON or not self._has_room(going):
            return None
        self._start(going, count, drafting)
        return self._land()

    def _has_room(self, going: np.ndarray) -> bool:
        """Get blocks for who needs one; false if there is none."""
        reach = np.minimum(self._known + 1, self._most - 1)
        for place in np.flatnonzero((reach > self._room) & going).tolist():
            sequence = self._members[place]
            wanted = blocks_for(int(reach[place])) - len(sequence.blocks)
            blocks = self._loop.scheduler.pool.allocate(wanted)
            if blocks is None:
                return False
            sequence.blocks += blocks
            self._room[place] = len(sequence.blocks) * BLOCK_TOKENS
            self._loop.turns.refresh(sequence)
        return True

    def _start(self, going: np.ndarray, count: int, drafting: Drafting) -> None:
        loop, stats = self._loop, self._loop.scheduler.stats
        rows = np.where(going, np.cumsum(going) - 1, -1)
        shares = tuple(self._shares)
        if count < len(shares):
            shares = tuple(share for share, goes in zip(shares, going.tolist(), strict=True) if goes)
        columns = TurnColumns(
            slots=self._slots[going], drafts=np.zeros(count, np.int64),
            starts=np.full(count, FROM_DEVICE), ends=self._known[going] + 1, contexts=self._contexts[going],
        )  # fmt: skip
        work = loop.turns.ready_plain(shares, columns, drafting, loop.saved)
        loop.flights.append(InFlight(shares, 0, drafting, 0, loop.runner.start(work), True))
        self._flights.append((rows, []))
        stats.num_steps += 1
        stats.num_ahead += 1
        stats.num_unseen += 1
        stats.num_rows += count

    def _land(self) -> TurnRecords:
        loop, flight, (rows, strangers) = self._loop, self._loop.flights.popleft(), self._flights.popleft()
        try:
            result = flight.wait()
        finally:
            for sequence in strangers:
                sequence.num_in_flight -= 1
            for place in np.flatnonzero(self._flights[0][0] < 0).tolist():
                self._members[place].num_in_flight -= 1
            loop.scheduler.land()
        assert isinstance(result, TurnResult), "a flight of a convoy is a turn"
        outcome, size = result.outcome, len(flight.shares)
        ids, raw = outcome.ids[rows], outcome.raw[rows]
        if not (np.isfinite(raw).all() and (ids >= 0).all()):
            self.tell()
            _ = result.answers  # says which one, and raises
        if loop.speculation is not None:
            is_whole = bool((outcome.count[:size] > 0).all())
            loop.speculation.landed_plain(size, flight.drafting, is_whole, result.is_typical)
        self._known += 1
        self._note(ids, flight.drafting)
        if loop.saved[0] and result.boundaries:
            self._remember(result.boundaries)
        ends = self._endings(ids)
        records = TurnRecords(
            names=self._names, token_ids=ids, positions=self._known - 1, raw=raw,
            processed=outcome.processed[rows], ends=ends,
        )  # fmt: skip
        if ends:
            self._leave(list(ends))
        return records

    def _note(self, ids: Int64, drafting: Drafting) -> None:
        if self._num_late == _LATE:
            self.tell()
            self._told[:] = self._num_late = self._last_paused = 0
        self._late[:, self._num_late] = ids
        self._num_late += 1
        if drafting is Drafting.PAUSED:
            self._last_paused = self._num_late

    def _remember(self, boundaries: Items[Boundary]) -> None:
        places = {id(sequence): place for place, sequence in enumerate(self._members)}
        computed = {}
        for sequence in (found.sequence for found in boundaries):
            if id(sequence) in places:
                self._tell_one(places[id(sequence)])
                computed[id(sequence)] = sequence.num_computed
        self._loop.remember(boundaries, computed)

    def _endings(self, ids: Int64) -> dict[int, tuple[FinishReason, int, int]]:
        """Who ends with the token that was just noted, and why; see ``TurnRecords``."""
        loop, found = self._loop, {}
        is_over = (self._known >= self._most) | (self._ends & (ids == loop.eos_token_id))
        for place in np.flatnonzero(is_over | self._watched).tolist():
            sequence, token = self._members[place], int(ids[place])
            self._tell_one(place)
            params = sequence.request.params
            sequence.is_over = bool(is_over[place]) or is_stop_token(params, token, loop.eos_token_id)
            answer = Answer(self._shares[place], (token,), 0, 0, sequence.is_over)
            reason = ending(answer, loop.eos_token_id, loop.max_length).reason
            if reason is not None:
                found[place] = reason, sequence.num_hit_tokens, sequence.num_preemptions
                if self._flights[0][0][place] >= 0:
                    self._flights[0][1].append(sequence)
                loop.forget(sequence, reason)
        return found

    def _leave(self, places: list[int]) -> None:
        keep = np.ones(len(self._members), np.bool_)
        keep[places] = False
        here = np.flatnonzero(keep).tolist()
        self._members = [self._members[place] for place in here]
        self._shares = [self._shares[place] for place in here]
        self._names = [self._names[place] for place in here]
        for name in (
            "_slots",
            "_known",
            "_most",
            "_room",
            "_contexts",
            "_ends",
            "_watched",
            "_late",
            "_told",
        ):
            setattr(self, name, getattr(self, name)[keep])
        self._flights = deque((rows[keep], strangers) for rows, strangers in self._flights)

    def tell(self) -> None:
        """Let all members know their tokens."""
        for place in range(len(self._members)):
            self._tell_one(place)

    def _tell_one(self, place: int) -> None:
        first, end = int(self._told[place]), self._num_late
        if first < end:
            since = end - self._last_paused if self._last_paused > first else None
            self._members[place].take_turns(self._late[place, first:end].tolist(), since)
            self._told[place] = end
