"""Turns in larger recordings than their own: which may be played there, and what they pay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deepinfer.engine.speculation.timing import Drafting
from deepinfer.engine.turns.covering import Covering, covers
from deepinfer.engine.turns.table import TurnShape

PLAIN = TurnShape(
    num_sequences=16, num_rows=16, width=1, num_blocks=4, history=3, entries=((1, 4096, 256), (2, 4096, 256))
)
DRAFTED = replace(
    PLAIN, num_rows=48, width=6, drafting=Drafting.ON, num_drafted=5, is_shared_out=True
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "fits"),
    [
        ({"num_sequences": 8, "num_rows": 40}, True),
        ({"num_sequences": 24, "num_rows": 56}, False),
        ({"num_rows": 32}, True),
        ({"num_rows": 64}, False),
        ({"num_rows": 16, "width": 1, "is_shared_out": False}, True),
        ({"is_shared_out": False}, True),
        ({"num_drafted": 2}, True),
        ({"num_blocks": 8}, False),
        ({"entries": ((1, 4096, 512), (2, 4096, 256))}, False),
        ({"entries": ((1, 8192, 256), (2, 4096, 256))}, False),
        ({"history": 4}, False),
        ({"drafting": Drafting.WATCHING}, False),
    ],
)
def test_what_a_larger_shape_covers(changed: dict[str, Any], fits: bool) -> None:
    assert covers(DRAFTED, replace(DRAFTED, **changed)) == fits


def test_drafts_are_shared_out_where_a_shape_can() -> None:
    assert not covers(replace(DRAFTED, is_shared_out=False), DRAFTED)


def test_a_shape_without_room_for_drafts_covers_none() -> None:
    assert not covers(replace(DRAFTED, num_rows=16, width=1), DRAFTED)


def test_the_smallest_recording_is_taken() -> None:
    covering, small = Covering(), replace(PLAIN, num_sequences=4, num_rows=4)
    larger = [replace(PLAIN, num_sequences=count, num_rows=count) for count in (64, 8, 16)]
    assert covering.shape_of(small, larger) == larger[1]
    assert covering.shape_of(small, []) == small
    assert covering.shape_of(larger[0], [small, *larger[1:]]) == larger[0], "nothing is large enough"


@pytest.mark.parametrize(("rows", "turns"), [(8, 1024), (4, 512), (1, 256)])
def test_rent_is_paid_by_doublings_until_it_is_a_recording(rows: int, turns: int) -> None:
    covering, wanted = Covering(), replace(PLAIN, num_sequences=rows, num_rows=rows)
    played = [covering.shape_of(wanted, [PLAIN]) for _ in range(turns + 1)]
    assert played == [PLAIN] * turns + [wanted]
