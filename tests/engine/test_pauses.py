"""When drafting pauses, and what ends a pause, told step by step."""

from __future__ import annotations

import numpy as np
import pytest
from draft_machine import step

from deepinfer.engine.speculation.pauses import TRIAL, Pauses
from deepinfer.engine.speculation.timing import Drafting

PLAIN_S = 0.010


def drafting_at_once(pauses: Pauses) -> None:
    while pauses.mode(1) is not Drafting.ON:
        pauses.learn(step(1, 10.0, pauses.mode(1)), PLAIN_S, False)


@pytest.mark.parametrize("seed", range(10))
def test_a_gain_of_a_tenth_is_never_paused_by_bad_luck(seed: int) -> None:
    """1.45 tokens for the time of 1.3: the first two dozen steps say the contrary one time in six."""
    pauses, draw, drafting = Pauses(), np.random.default_rng(seed), 0
    for _ in range(1000):
        mode = pauses.mode(1)
        drafting += mode is Drafting.ON
        tokens = 1 + int(mode is Drafting.ON and draw.random() < 0.45)
        pauses.learn(step(tokens, 13.0 if mode is Drafting.ON else 10.0, mode), PLAIN_S, False)
    assert drafting > 950


def test_a_pause_begins_with_plain_steps_that_may_end_it() -> None:
    """The machine became slower, and plain steps with it."""
    pauses = Pauses()
    drafting_at_once(pauses)
    while pauses.mode(1) is Drafting.ON:
        pauses.learn(step(2, 40.0), PLAIN_S, False)
    for _ in range(TRIAL):
        assert pauses.mode(1) is Drafting.PAUSED
        pauses.learn(step(1, 30.0, Drafting.PAUSED), 0.030, False)
    assert pauses.mode(1) is Drafting.WATCHING
    drafting_at_once(pauses)


@pytest.mark.parametrize(("gain", "least", "most"), [(1.05, 10, 14), (1.5, 3, 4)])
def test_plain_steps_are_timed_again_and_again_where_little_is_won(
    gain: float, least: int, most: int
) -> None:
    """In 2,000 steps: after 48, then every 192 if a slow second could hide a loss; else ever less often."""
    pauses, trials, before = Pauses(), 0, Drafting.ON
    drafting_at_once(pauses)
    for _ in range(2000):
        mode = pauses.mode(1)
        trials += mode is not Drafting.ON and before is Drafting.ON
        before = mode
        pauses.learn(step(2 if mode is Drafting.ON else 1, 20.0 / gain, mode), PLAIN_S, False)
    assert least <= trials <= most


def test_single_slow_steps_are_no_loss() -> None:
    """Other work takes the machine away for a while: one step of eight takes twenty times as long."""
    pauses, draw = Pauses(), np.random.default_rng(0)
    drafting_at_once(pauses)
    for number in range(200):
        milliseconds = 12.0 * (20 if number % 8 == 0 else 1)
        pauses.learn(step(1 + int(draw.random() < 0.5), milliseconds), PLAIN_S, False)
        assert pauses.mode(1) is not Drafting.PAUSED
        drafting_at_once(pauses)
