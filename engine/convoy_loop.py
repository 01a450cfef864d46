"""What a convoy takes from the engine loop, and what it knows of a flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from deepinfer.engine.api import FinishReason
from deepinfer.engine.asynchrony import Runner
from deepinfer.engine.flight import InFlight
from deepinfer.engine.scheduler import Scheduler, Share
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.control import SpeculationControl
from deepinfer.engine.step_plan import Int64
from deepinfer.engine.step_run import Boundary
from deepinfer.engine.turns.player import TurnPlayer


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a convoy takes from the engine loop.

    Attributes:
        turns, runner, scheduler, speculation: see ``EngineCore``.
        flights: what is in the air, the oldest first; shared with the loop.
        saved: which rings are kept at block ends, see ``TurnRun``.
        eos_token_id, max_length: what ends a sequence.
        fewest: members of a convoy; for fewer a loop is quicker than arrays.
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
    fewest: int
    forget: Callable[[Sequence, FinishReason], None]
    remember: Callable[[Items[Boundary], Mapping[int, int]], None]


@dataclass(frozen=True)
class Air:
    """A flight of R members.

    Attributes:
        rows: int64 [R], of the members in its turn, -1 for those that are not in it.
        drafts: int64 [R], drafts that each has rows for, at most.
        strangers: who has ended since it began, with their drafts.
    """

    rows: Int64
    drafts: Int64
    strangers: list[tuple[Sequence, int]]


def shares_of(members: Items[Sequence], drafts: Int64) -> list[Share]:
    """Of turns in which each member has one known row and so many drafts."""
    return [Share(s, 1, count, True) for s, count in zip(members, drafts.tolist(), strict=True)]


def stops_of(members: Items[Sequence]) -> dict[int, tuple[int, ...]]:
    """Stop tokens by place, of those that have any."""
    asked = ((place, sequence.request.params.stop_token_ids) for place, sequence in enumerate(members))
    return {place: ids for place, ids in asked if ids}
