"""Turns on a device: planned, ended, handed over and drafted as in torch; in Triton's interpreter."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from beside import Beside

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
BESIDE = ["interpreted_turns.py"]


def test_device_kernels_owe_the_integers_of_torch(beside: Beside) -> None:
    found = beside.answer("interpreted_turns.py")
    assert found["wrong"] == {}
    assert found["control"] == ["history.0", "ring.0"], "a ring of another length would be seen"
