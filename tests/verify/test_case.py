"""Cases are data: they survive JSON, follow what the other side said, and are judged as bytes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from deepinfer.engine.api import Device, EngineConfig, PrefillMode
from deepinfer.engine.errors import InputError
from deepinfer.engine.speculation.options import Speculation
from deepinfer.verify.case import (
    Answer,
    Ask,
    Case,
    Need,
    Place,
    Trial,
    as_fields,
    case_from_dict,
    refused,
    settings,
)
from deepinfer.verify.outcome import judge
from deepinfer.verify.trial_run import follow

LEFT = Trial(ask=Ask.GENERATE, prompts=((0, 5, 6), (0, 9)), max_tokens=3, temperature=0.5, seeds=(1, None))
RIGHT = Trial(
    ask=Ask.RESCORE,
    prompts=((0, 9), (0, 5, 6)),
    target=1,
    before=((0, 5),),
    engine=settings(prefill=PrefillMode.MASK, max_chunk_tokens=7, prefix_caching=False),
    place=Place.PROCESS,
    unpacked=True,
)
CASE = Case(check="grid", name="draw-1", left=LEFT, right=RIGHT, workload="prose", need=Need.HIT)


def answer(logits: Any, first: int = 1, **changes: Any) -> Answer:
    rows = np.array(logits, np.float32)
    made = Answer(
        token_ids=np.zeros(len(rows), np.int32),
        positions=np.arange(first, first + len(rows)),
        logits=rows,
    )
    return replace(made, **changes)


SCORED = Case(
    check="batch",
    name="2-first",
    left=Trial(ask=Ask.SCORE, prompts=((0, 1, 2),)),
    right=Trial(ask=Ask.SCORE, prompts=((0, 1, 2), (0, 3))),
)


def test_a_case_survives_json() -> None:
    assert case_from_dict(json.loads(json.dumps(CASE.to_dict()))) == CASE
    assert RIGHT.config(EngineConfig()).prefill is PrefillMode.MASK
    assert RIGHT.config(EngineConfig()).max_chunk_tokens == 7


@pytest.mark.parametrize("damage", [{"left": 3}, {"check": None, "right": {}}, {"need": "luck"}])
def test_what_is_no_case_is_refused_in_one_line(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"not a case of verify .*; write it anew"):
        case_from_dict({**CASE.to_dict(), **damage})


def test_rescoring_follows_the_generated_tokens() -> None:
    left = answer([[0.0, 1.0]] * 3, token_ids=np.array([7, 8, 9], np.int32))
    followed = follow(RIGHT, left)
    # the last token was never read
    assert (followed.ask, followed.tokens) == (Ask.SCORE, (0, 5, 6, 7, 8))
    assert followed.prompts[0] == (0, 9)
    assert follow(LEFT, left) is LEFT


def test_equal_answers_are_equal() -> None:
    outcome = judge(SCORED, answer([[1, 2], [3, 4]]), answer([[1, 2], [3, 4]]))
    assert (outcome.differs, outcome.num_rows, outcome.blocked) == (False, 2, None)


def test_the_sign_of_zero_is_a_difference() -> None:
    outcome = judge(SCORED, answer([[0.0, 2], [3, 4]]), answer([[-0.0, 2], [3, 4]]))
    assert outcome.differs
    assert (outcome.array, outcome.position, outcome.differing.tolist()) == ("logits", 1, [0])


def test_sides_of_one_kind_must_answer_for_the_same_positions() -> None:
    outcome = judge(SCORED, answer([[1, 2], [3, 4]]), answer([[3, 4]], first=2))
    assert (outcome.array, outcome.comparison.mismatch) == (
        "positions",
        "2 rows against 1, or at other positions",
    )


def test_sides_of_two_kinds_are_compared_where_both_answer() -> None:
    case = replace(CASE, need=Need.NOTHING)
    outcome = judge(case, answer([[3, 4]], first=5), answer([[1, 2], [3, 4]], first=4))
    assert (outcome.num_rows, outcome.differs) == (1, False)
    apart = judge(case, answer([[3, 4]], first=9), answer([[1, 2]], first=4))
    assert apart.blocked is not None
    assert not apart.differs


def test_what_did_not_happen_is_no_proof() -> None:
    assert judge(CASE, answer([[1, 2]]), answer([[1, 2]])).blocked is not None
    preempted = replace(CASE, need=Need.PREEMPTION)
    assert judge(preempted, answer([[1, 2]]), answer([[1, 2]], num_preemptions=1)).blocked is None


def test_a_refusal_of_one_side_is_a_difference_and_of_both_is_undecided() -> None:
    one = judge(SCORED, answer([[1, 2]]), refused("no room"))
    assert (one.differs, one.comparison.mismatch) == (True, "one side was refused: no room")
    both = judge(SCORED, refused("no room"), refused("no room"))
    assert (both.differs, both.blocked) == (False, "2-first: no room")


def test_nan_is_named_and_never_equal_enough() -> None:
    outcome = judge(SCORED, answer([[1, np.nan]]), answer([[1, np.nan]]))
    assert outcome.non_finite == "2-first: logits for position 1"


def test_arrays_of_one_side_only_are_a_difference() -> None:
    left = answer([[1, 2]], whole={"main.5": np.zeros(2, np.uint8)})
    assert judge(SCORED, left, answer([[1, 2]])).array == "main.5"


@pytest.mark.parametrize("speculation", ["off", "fixed:2", "confidence"])
def test_a_configuration_survives_being_written_down(speculation: str) -> None:
    """As child processes and packs hand it on."""
    config = EngineConfig(
        prefill=PrefillMode.MASK, device=Device.CUDA, speculation=Speculation.from_text(speculation)
    )
    assert EngineConfig(**as_fields(json.loads(json.dumps(asdict(config))))) == config
