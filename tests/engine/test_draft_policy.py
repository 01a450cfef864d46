"""What the confidence policy believes of costs, when it pauses, and how many drafts it takes."""

from __future__ import annotations

import numpy as np
import pytest

from deepinfer.engine.api import GenerateRequest, SamplingParams
from deepinfer.engine.sequence import Sequence
from deepinfer.engine.speculation.confidence import ConfidenceDrafts
from deepinfer.engine.speculation.costs import StepCosts
from deepinfer.engine.speculation.drafts import Drafts
from deepinfer.engine.speculation.pauses import Drafting, Pauses
from deepinfer.engine.speculation.timing import StepTiming
from deepinfer.kernels.dispatch import select_ops

PLAIN_S = 0.010


def drafted(num_tokens: int, seconds: float, num_rows: int = 3, draft_s: float = 0.0) -> StepTiming:
    return StepTiming(
        num_sequences=1, num_rows=num_rows, num_tokens=num_tokens, is_drafting=True, run_s=seconds,
        draft_s=draft_s,
    )  # fmt: skip


def played(pauses: Pauses, draw: np.random.Generator, steps: int, accepted: float, seconds: float) -> int:
    """Steps with one draft that is accepted with a probability; returns how many of them drafted."""
    drafting = 0
    for _ in range(steps):
        if pauses.mode(1) is Drafting.ON:
            drafting += 1
            pauses.drafting_step(drafted(1 + int(draw.random() < accepted), seconds), PLAIN_S)
        else:
            pauses.plain_step(1)
    return drafting


@pytest.mark.parametrize("seed", range(10))
def test_a_gain_of_a_tenth_is_never_paused_by_bad_luck(seed: int) -> None:
    """1.45 tokens for the time of 1.3: the first two dozen steps say the contrary one time in six."""
    assert played(Pauses(), np.random.default_rng(seed), 1000, 0.45, 1.3 * PLAIN_S) > 950


@pytest.mark.parametrize("loss", [0.75, 0.9])
def test_a_loss_costs_little_in_the_end(loss: float) -> None:
    """Pauses get longer: over 20,000 steps less than a fiftieth of the time is lost."""
    seconds = 1.4 / loss * PLAIN_S
    drafting = played(Pauses(), np.random.default_rng(0), 20_000, 0.4, seconds)
    assert drafting * (1 / loss - 1) < 0.02 * 20_000
    assert drafting >= 24, "it was tried"


def test_plain_decoding_is_timed_again_before_a_pause() -> None:
    pauses = Pauses()
    while pauses.mode(1) is Drafting.WATCHING:
        pauses.plain_step(1)
    while pauses.mode(1) is Drafting.ON:
        pauses.drafting_step(drafted(1, 2 * PLAIN_S), PLAIN_S)
    assert pauses.mode(1) is Drafting.WATCHING
    while pauses.mode(1) is Drafting.WATCHING:
        pauses.plain_step(1)
    for _ in range(30):
        pauses.drafting_step(drafted(1, 2 * PLAIN_S), 2.1 * PLAIN_S)
        assert pauses.mode(1) is Drafting.ON, "the machine became slower, and plain steps with it"


def test_single_slow_steps_are_no_loss() -> None:
    """Other work takes the machine away for a while: one step of eight takes twenty times as long."""
    pauses, draw = Pauses(), np.random.default_rng(0)
    while pauses.mode(1) is Drafting.WATCHING:
        pauses.plain_step(1)
    for step in range(200):
        seconds = 1.2 * PLAIN_S * (20 if step % 8 == 0 else 1)
        pauses.drafting_step(drafted(1 + int(draw.random() < 0.5), seconds), PLAIN_S)
        assert pauses.mode(1) is Drafting.ON


def test_costs_never_fall_and_what_is_unknown_is_tried() -> None:
    costs = StepCosts()
    assert costs.curve(1, 3).tolist() == [0.0, 0.0, 0.0]
    for rows, seconds in ((1, 1.0), (3, 0.9), (6, 2.0)):
        for _ in range(3):
            costs.learn(rows, seconds)
    costs.learn(5, 9.0)  # once is not enough to be believed
    assert costs.curve(1, 6).tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0]


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
    policy = ConfidenceDrafts(select_ops("cpu", bf16=False, num_threads=1), 5)
    for rows in range(1, 7):
        for _ in range(3):
            policy.learn(drafted(1, PLAIN_S * (0.9 + 0.1 * rows), rows, 0.3 * PLAIN_S))
    assert policy.shares([sequence(confidences)], 8) == [wanted]
    assert policy.shares([sequence(confidences)], 1) == [min(wanted, 1)], "no more than there is room for"
