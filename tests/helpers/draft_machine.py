"""A machine that only takes time: decode steps with drafts under a policy, one step ahead of what is known.

Seconds follow a formula, acceptance is drawn; a policy sees both as an engine would show them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.api import GenerateRequest, SamplingParams
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.buckets import row_bucket, sequence_bucket
from deepinfer.engine.speculation.drafts import Drafts
from deepinfer.engine.speculation.policy import DraftPolicy
from deepinfer.engine.speculation.timing import Drafting, StepTiming
from deepinfer.engine.turns.covering import Covering
from deepinfer.engine.turns.table import TurnShape

NUM_DRAFTS = 5


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Milliseconds of a step.

    Attributes:
        plain: without anything of drafts.
        contexts: more, where contexts are kept.
        stages: more, where a block is drafted, and for each of its tokens.
        row: more, for each drafted row.
        noise: share by which a step varies; one of 50 takes five times as long.
        slow: steps of the machine that are seen three times as long, from its start on.
        compiling, recording: of the first and second step of a shape, beside its own time.
    """

    plain: float
    contexts: float
    stages: tuple[float, float]
    row: float
    noise: float = 0.01
    slow: int = 0
    compiling: float = 0.0
    recording: float = 0.0

    def of(self, num_rows: int, drafting: Drafting, num_drafted: int) -> float:
        """Without noise."""
        found = self.plain + self.row * num_rows
        if drafting is not Drafting.PAUSED:
            found += self.contexts
        if drafting is Drafting.ON:
            found += self.stages[0] + self.stages[1] * num_drafted
        return found

    def measured(self, seconds: float, number: int, draw: np.random.Generator) -> float:
        """What is seen of it in step ``number``."""
        factor = 3 if number < self.slow else 5 if draw.random() < 0.02 else 1
        return seconds * float(1 + self.noise * draw.standard_normal()) * factor


@dataclass
class Played:
    """Expected tokens and seconds of a run; drafts asked for; shapes that would have been recorded."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: dict[Drafting, int] = field(default_factory=dict)
    recorded: int = 0
    asked: set[int] = field(default_factory=set)
    shapes: set[TurnShape] = field(default_factory=set)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Machine:
    """Its clock, under a policy.

    Attributes:
        chances: of each draft of a block, if those before it were accepted, on average.
        paces: factors on the seconds of one step after the other, again from the first one at their end.
    """

    clock: Clock
    num_sequences: int
    chances: tuple[float, ...] = (0.5, 0.3, 0.4, 0.4, 0.4)
    seed: int = 0
    paces: Items[float] = (1.0,)

    def __post_init__(self) -> None:
        self._draw = np.random.default_rng(self.seed)
        params = SamplingParams(max_tokens=10**6)
        self.sequences = [
            Sequence(
                GenerateRequest(request_id=f"r{i}", token_ids=[1], params=params), i, 0, 0,
                np.array([1]), 10**6,
            )
            for i in range(self.num_sequences)
        ]  # fmt: skip
        self._num_steps = 0
        self._left: np.ndarray | None = None
        self._plays: dict[TurnShape, int] = {}
        self._covering = Covering()

    def round(self, policy: DraftPolicy, tokens: int) -> Played:
        """All sequences from their start to their end, which they reach one by one."""
        everybody, self._left = self.sequences, np.full(len(self.sequences), tokens)
        played = self.run(policy, 10**6)
        self.sequences, self._left = everybody, None
        return played

    def run(self, policy: DraftPolicy, steps: int) -> Played:
        """So many steps; each begins before its predecessor is learned from."""
        played, landing = Played(), deque[StepTiming | None]()
        drafted, ahead = 0, np.zeros((len(self.sequences), 0))
        for _ in range(steps):
            count = len(self.sequences)
            if count == 0:
                break
            mode = policy.mode(count)
            unseen = policy.unseen(self.sequences, drafted) if drafted else None
            asked = 0
            if unseen is not None:
                asked = count * unseen.most if unseen.total is None else unseen.total
            played.asked.add(asked)
            block = policy.block(count) if mode is Drafting.ON else 0
            verified, expected = self._verified(ahead, asked)
            self._num_steps += 1
            seconds, is_typical = self._seconds(asked, mode, block, played)
            played.seconds += seconds
            num_tokens = count + sum(accepted for _, accepted in verified)
            played.tokens += count + expected
            played.steps[mode] = played.steps.get(mode, 0) + 1
            landing.append(
                StepTiming(
                    num_sequences=count, num_drafts=asked, num_tokens=num_tokens, drafting=mode,
                    seconds=self.clock.measured(seconds, self._num_steps, self._draw),
                    verified=tuple(verified) if asked else (),
                )
                if is_typical else None
            )  # fmt: skip
            if len(landing) > 1 and (timing := landing.popleft()) is not None:
                is_plain = timing.drafting is Drafting.PAUSED and timing.num_drafts == 0
                if not (is_plain and policy.passes(timing.num_sequences)):
                    policy.learn(timing)
            self._end(verified)
            drafted, ahead = block, self._drafts(block)
        return played

    def _end(self, verified: list[tuple[int, int]]) -> None:
        if self._left is not None:
            self._left = self._left - 1 - np.array([accepted for _, accepted in verified])
            self.sequences = [s for s, left in zip(self.sequences, self._left, strict=True) if left > 0]
            self._left = self._left[self._left > 0]

    def _seconds(self, asked: int, mode: Drafting, block: int, played: Played) -> tuple[float, bool]:
        """The first two plays of a shape are compiled and recorded: their time is no step's."""
        held = sequence_bucket(len(self.sequences))
        shape = TurnShape(
            num_sequences=held, num_rows=row_bucket(held + asked) if asked else held,
            width=1 + NUM_DRAFTS * bool(asked), num_blocks=4, history=3, entries=(), drafting=mode,
            num_drafted=block, is_shared_out=asked > 0 and len(self.sequences) > 1,
        )  # fmt: skip
        if self._plays.get(shape, 0) < 2:
            shape = self._covering.shape_of(
                shape, [known for known, plays in self._plays.items() if plays > 1]
            )
        played.shapes.add(shape)
        self._plays[shape] = self._plays.get(shape, 0) + 1
        played.recorded += self._plays[shape] == 2
        extra = {1: self.clock.compiling, 2: self.clock.recording}.get(self._plays[shape], 0.0)
        seconds = self.clock.of(shape.num_drafts, mode, shape.num_drafted) + extra
        return seconds * self.paces[self._num_steps % len(self.paces)], self._plays[shape] > 2

    def _drafts(self, block: int) -> np.ndarray:
        """Confidences that say how likely each draft is accepted."""
        mean = np.array(self.chances[:block])
        spread = np.minimum(np.minimum(mean, 1 - mean), 0.25)
        sure = self._draw.uniform(mean - spread, mean + spread, (len(self.sequences), block))
        sure = sure.astype(np.float32)
        tokens = np.zeros(block, np.int64)
        for sequence, row in zip(self.sequences, sure, strict=True):
            sequence.drafts = Drafts(tokens, row)
        return sure

    def _verified(self, sure: np.ndarray, asked: int) -> tuple[list[tuple[int, int]], float]:
        """Shares of the likeliest drafts and how many of each are accepted; how many one may expect."""
        survival = np.cumprod(sure, axis=1)
        order = np.argsort(-survival, axis=None, kind="stable")[:asked]
        shares = np.bincount(order // max(1, sure.shape[1]), minlength=len(self.sequences))
        is_right = self._draw.random(sure.shape) < sure
        is_right &= np.arange(sure.shape[1]) < shares[:, None]
        accepted = np.cumprod(is_right, axis=1).sum(1)
        expected = float(survival.flatten()[order].sum())
        return list(zip(shares.tolist(), accepted.tolist(), strict=True)), expected


def step(tokens: int, milliseconds: float, drafting: Drafting = Drafting.ON) -> StepTiming:
    """A step of a single sequence, with two drafts where it drafts."""
    return StepTiming(
        num_sequences=1, num_drafts=2 * (drafting is Drafting.ON), num_tokens=tokens, drafting=drafting,
        seconds=milliseconds / 1e3,
    )  # fmt: skip


def shared_paces(seed: int, steps: int) -> list[float]:
    """Of a machine that others use: half as fast for seconds, a tenth slower for one, single steps thrice."""
    draw, paces = np.random.default_rng(seed), list[float]()
    while len(paces) < steps:
        level = float(draw.choice([1.0, 1.0, 1.15, 1.5, 2.0]))
        for number in range(int(draw.integers(50, 600))):
            if number % 60 == 0:
                second = level * float(draw.uniform(1.0, 1.12))
            waited = 3.0 if draw.random() < 0.02 else 1.0
            paces.append(second * waited * float(np.exp(0.05 * draw.standard_normal())))
    return paces
