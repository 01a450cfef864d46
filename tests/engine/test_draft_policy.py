"""What the confidence policy believes of costs, when it pauses, and how many drafts it takes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from draft_machine import NUM_DRAFTS, Clock, Machine, shared_paces, step

from deepinfer.engine.api import GenerateRequest, SamplingParams
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation import pauses as pauses_module
from deepinfer.engine.speculation.buckets import row_bucket, sequence_bucket
from deepinfer.engine.speculation.confidence import ConfidenceDrafts
from deepinfer.engine.speculation.costs import BatchCosts, StepCosts
from deepinfer.engine.speculation.drafts import Drafts
from deepinfer.engine.speculation.policy import FixedDrafts
from deepinfer.engine.speculation.timing import Drafting, StepTiming
from deepinfer.kernels.dispatch import select_ops

# milliseconds of turns on an H200, of a slower device where drafts are dearer, and of steps on two cores
DEVICE = {
    1: Clock(plain=1.15, contexts=0.02, stages=(0.29, 0.01), row=0.003),
    16: Clock(plain=1.27, contexts=0.07, stages=(0.70, 0.01), row=0.0025),
    64: Clock(plain=1.77, contexts=0.06, stages=(0.85, 0.01), row=0.0025),
}
SHORT = {
    16: Clock(plain=0.41, contexts=0.02, stages=(0.09, 0.01), row=0.0064),
    64: Clock(plain=0.52, contexts=0.026, stages=(0.64, 0.01), row=0.0011),
}
"""Since launches became shorter."""
DEAR = Clock(plain=1.53, contexts=0.06, stages=(0.90, 0.03), row=0.012)
CORES = Clock(plain=8.4, contexts=0.2, stages=(1.0, 0.15), row=0.8, noise=0.05)


def confidence() -> ConfidenceDrafts:
    return ConfidenceDrafts(select_ops("cpu", bf16=False, num_threads=1), NUM_DRAFTS)


def best_speed(clock: Clock, count: int, chances: tuple[float, ...]) -> float:
    """Tokens a millisecond of the best fixed number of drafts, plain decoding included."""
    survival = np.cumprod(chances)
    speeds = [count / clock.of(0, Drafting.PAUSED, 0)]
    for number in range(1, NUM_DRAFTS + 1):
        held = sequence_bucket(count)
        rows = row_bucket(held + count * number) - held
        speeds.append(count * (1 + survival[:number].sum()) / clock.of(rows, Drafting.ON, number))
    return float(max(speeds))


class TimedAlone(BatchCosts):
    """Costs of a single sequence by the clock alone, as those of several are."""

    def __init__(self) -> None:
        super().__init__()
        self.drafting.comparisons = lambda one, other: 99  # type: ignore[attr-defined]


WEAK, FAIR = (0.5, 0.3, 0.4, 0.4, 0.4), (0.9, 0.85, 0.8, 0.8, 0.8)
MET = (0.46, 0.3, 0.45, 0.6, 0.6)
"""Of the bundled checkpoint on an H200: 1.46 tokens a step with one draft, 1.60 with two, 1.73 with five."""
EVEN = (0.5, 0.4, 0.5, 0.5, 0.5)
"""As seen of the bundled checkpoint; at 16 sequences these win or lose a hundredth against plain steps."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("clock", "count", "chances", "steps"),
    [
        (DEVICE[1], 1, WEAK, 600), (DEVICE[16], 16, WEAK, 600), (DEVICE[64], 64, WEAK, 600),
        (DEVICE[1], 1, FAIR, 600), (DEVICE[16], 16, FAIR, 600), (DEVICE[64], 64, FAIR, 600),
        (DEAR, 16, WEAK, 600), (DEAR, 16, FAIR, 600), (CORES, 1, WEAK, 600),
    ],
)  # fmt: skip
def test_a_cold_start_soon_reaches_the_best_fixed_number(
    clock: Clock, count: int, chances: tuple[float, ...], steps: int, seed: int
) -> None:
    """All that is tried in the first steps costs little, and 0.98 of the best is held after them."""
    policy, machine = confidence(), Machine(clock, count, chances, seed)
    cold, warm = machine.run(policy, steps), machine.run(policy, steps)
    best = best_speed(clock, count, chances)
    assert warm.speed > 0.98 * best
    assert cold.speed > 0.95 * best
    assert cold.recorded <= (10 if count == 1 else 7)
    assert warm.recorded <= 2


SHARED = replace(CORES, plain=10.6, contexts=0.25, stages=(1.1, 0.2), row=0.75, noise=0.0)
SEEN = (0.41, 0.33, 0.45, 0.4, 0.4)
"""Milliseconds and acceptance of the bundled checkpoint on two shared cores."""


def test_a_machine_that_changes_its_speed_fools_nobody() -> None:
    """Better than two fixed drafts where the speed halves for seconds; by the clock alone, drafts pause."""
    speeds = []
    for costs in (None, TimedAlone(), FixedDrafts(2)):
        machine = Machine(SHARED, 1, SEEN, seed=1, paces=shared_paces(9, 2_000))
        policy = costs if isinstance(costs, FixedDrafts) else confidence()
        if isinstance(costs, TimedAlone):
            policy._alone = costs  # type: ignore[union-attr,assignment]
        speeds.append(machine.run(policy, 2_000).speed)
    neighbours, clock, fixed = speeds
    assert neighbours > fixed
    assert clock < 0.98 * fixed, "negative control"


def test_where_drafts_lose_plain_steps_are_all_that_is_left() -> None:
    """Half as fast with drafts: over 8,000 steps less than a hundredth of the time is lost."""
    clock = Clock(plain=1.5, contexts=0.06, stages=(3.0, 0.1), row=0.01)
    played = Machine(clock, 16, WEAK).run(confidence(), 8_000)
    assert played.speed > 0.99 * best_speed(clock, 16, WEAK)
    assert 8 <= played.steps[Drafting.ON] < 80, "it was tried, and tried again"


@pytest.mark.parametrize("count", [16, 64])
def test_trials_at_a_constant_number_of_sequences_cost_a_hundredth(count: int) -> None:
    """Where no number of drafts pays, with the trials of the start and of all pauses in 5,000 steps."""
    played = Machine(SHORT[count], count, MET).run(confidence(), 5_000)
    assert played.speed > 0.99 * count / SHORT[count].plain
    assert played.steps[Drafting.ON] < 80


def test_most_steps_of_a_pause_are_only_counted() -> None:
    """One of 32 is timed, behind the trial that it begins with; it lasts as long as if all were."""
    policy, timed, lengths = confidence(), 0, []
    Machine(SHORT[64], 64, MET).run(policy, 60)
    for is_passing in (True, False):
        pauses = deepcopy(policy._pauses)
        steps = 0
        while pauses.mode(64) is Drafting.PAUSED:
            steps += 1
            if not (is_passing and pauses.passes(64)):
                timed += is_passing
                plain = StepTiming(64, 0, 64, Drafting.PAUSED, 0.52e-3)
                pauses.learn(plain, 0.52e-3, False)
        lengths.append(steps)
    assert lengths[0] == lengths[1] > 400
    assert timed < 24


@pytest.mark.parametrize("chances", [WEAK, FAIR])
def test_batches_that_drain_stop_recording(chances: tuple[float, ...]) -> None:
    """Sequences end one by one, so every smaller batch is met for a few steps, again and again."""
    policy, recorded = confidence(), []
    machines = {count: Machine(DEVICE[16 if count > 2 else 1], count, chances) for count in (16, 8, 4, 2, 1)}
    for _ in range(12):
        played = [machine.run(policy, 60 if count == 16 else 6) for count, machine in machines.items()]
        recorded.append(sum(run.recorded for run in played))
    assert sum(recorded) <= 35, "seven a batch size"
    assert sum(recorded[-3:]) <= 3


@pytest.mark.parametrize("chances", [WEAK, EVEN])
@pytest.mark.parametrize("count", [16, 64])
def test_measured_rounds_are_those_of_plain_decoding(count: int, chances: tuple[float, ...]) -> None:
    """As on the device: rounds of 96 tokens, six untimed; a shape costs 200 turns before it is played.

    Sequences with drafts end one by one, so a gain of a hundredth at full size is a loss of a fifth in all.
    """
    clock = replace(DEVICE[count], compiling=60.0, recording=200.0)
    policy, machine = confidence(), Machine(clock, count, chances)
    rounds = [machine.round(policy, 95) for _ in range(11)]
    speeds = sorted(played.speed for played in rounds[6:])
    assert speeds[2] > 0.98 * count / clock.plain
    assert sum(played.recorded for played in rounds) <= 6


def test_steps_that_keep_contexts_say_little_of_plain_ones() -> None:
    """They take a third longer, more than anybody would guess; drafts win against them, and lose."""
    clock = replace(DEVICE[16], plain=0.53, contexts=0.2, stages=(0.0, 0.01), row=0.0055)
    policy, machine = confidence(), Machine(clock, 16, WEAK)
    machine.run(policy, 250)
    assert machine.run(policy, 200).steps[Drafting.PAUSED] > 190


@pytest.mark.parametrize("slow", [10, 40])
def test_a_slow_start_is_forgotten(slow: int) -> None:
    """Plain steps look three times as dear at first: without a second look nothing would ever lose."""
    policy, machine = confidence(), Machine(replace(DEVICE[16], slow=slow), 16, WEAK)
    machine.run(policy, 250)
    assert machine.run(policy, 200).steps[Drafting.PAUSED] > 190


def test_what_was_timed_before_a_pause_is_forgotten() -> None:
    """The machine was busy when drafts were first tried; each number of them is tried again afterwards."""
    policy = confidence()
    machine = Machine(replace(DEVICE[64], stages=(3.0, 0.1)), 64, WEAK)
    machine.run(policy, 60)
    assert policy.mode(64) is Drafting.PAUSED
    machine.clock = DEVICE[64]
    asked = machine.run(policy, 600).asked
    assert asked >= {0, 64, 128}, "tried in the trial after the pause"


def test_no_number_is_judged_before_a_larger_one_that_may_pay() -> None:
    """Drafting itself is dear, rows are not: one draft each loses, five win."""
    clock = replace(DEVICE[64], stages=(2.0, 0.01))
    played = Machine(clock, 64, FAIR).run(confidence(), 100)
    assert played.steps.get(Drafting.PAUSED, 0) < 12, "a few show what plain steps take"
    assert played.speed > 0.8 * best_speed(clock, 64, FAIR)


def test_dear_contexts_do_not_hide_a_loss() -> None:
    """A step that keeps contexts takes far longer than a plain one, which is all that is timed at first."""
    policy, machine = confidence(), Machine(replace(DEAR, contexts=0.8), 16, WEAK)
    machine.run(policy, 100)
    assert machine.run(policy, 200).steps == {Drafting.PAUSED: 200}


def test_a_policy_that_never_pauses_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses_module._Case, "loses", lambda *_: False)
    played = Machine(DEAR, 16, WEAK).run(confidence(), 200)
    assert played.speed < 0.9 * best_speed(DEAR, 16, WEAK)


def test_a_gain_that_comes_later_is_found() -> None:
    """Texts change: drafts that were hardly ever right become fair, and the next trial shows it."""
    policy, machine = confidence(), Machine(DEVICE[16], 16, (0.1,) * 5)
    assert machine.run(policy, 100).steps[Drafting.ON] < 30
    machine.chances = FAIR
    machine.run(policy, 700)
    assert machine.run(policy, 100).steps == {Drafting.ON: 100}


def test_a_larger_batch_begins_with_the_pause_of_a_smaller_one() -> None:
    policy = confidence()
    Machine(DEVICE[16], 16, WEAK).run(policy, 100)
    assert policy.mode(16) is policy.mode(64) is policy.mode(12) is Drafting.PAUSED
    assert policy.mode(1) is Drafting.WATCHING, "few sequences are another matter"


def test_costs_never_fall_and_what_is_unknown_is_no_dearer() -> None:
    costs = StepCosts()
    assert costs.curve([1, 2, 3]) == [0.0, 0.0, 0.0]
    for size, seconds in ((1, 1.0), (3, 0.9), (6, 2.0)):
        for _ in range(3):
            costs.learn(size, seconds)
    costs.learn(5, 9.0)  # once is not enough to be believed
    assert costs.curve(range(1, 7)) == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0]


def sequence(confidences: list[float]) -> Sequence:
    params = SamplingParams(max_tokens=100)
    request = GenerateRequest(request_id="r", token_ids=[1, 2, 3], params=params)
    made = Sequence(request, 0, 0, 0, np.array([1, 2, 3]), 103)
    made.drafts = Drafts(np.arange(5), np.array(confidences, np.float32))
    return made


@pytest.mark.parametrize(
    ("confidences", "wanted"),
    [([0.9] * 5, 5), ([0.9, 0.9, 0.05, 0.9, 0.9], 2), ([0.05] * 5, 0), ([0.5, 0.1, 0.9, 0.9, 0.9], 1)],
)
def test_drafts_are_verified_as_far_as_they_pay(confidences: list[float], wanted: int) -> None:
    """A row costs a tenth of a step, so a draft that is reached and accepted more often than that pays."""
    policy = confidence()
    for number in range(6):
        for _ in range(3):
            timing = step(1, 12.0 + number)
            policy.learn(timing._replace(num_drafts=number))
    assert policy.shares([sequence(confidences)], 8) == [wanted]
    assert policy.shares([sequence(confidences)], 1) == [min(wanted, 1)], "no more than there is room for"
