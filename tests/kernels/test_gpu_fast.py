"""The fast device ops in Triton's interpreter: right to rounding, and a row's bits are its own.

The interpreter proves places, masks and the order that the kernels ask for; what the chip makes of it,
``benchmarks/gpu_layers.py`` checks there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fast_references
import pytest
from beside import Beside

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
HELPERS = Path(fast_references.__file__).parent
BESIDE = ["interpreted_fast.py"]


def run(*arguments: str) -> dict[str, Any]:
    """What a helper script prints."""
    script, *rest = arguments
    done = subprocess.run(
        [sys.executable, str(HELPERS / script), *rest], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found(beside: Beside) -> dict[str, float]:
    answer: dict[str, float] = beside.answer("interpreted_fast.py")
    return answer


@pytest.mark.parametrize("kind", ["experts", "attention", "index", "native"])
def test_kernels_on_packed_records_are_right_and_rows_keep_their_bits(
    found: dict[str, float], kind: str
) -> None:
    own = {name: value for name, value in found.items() if name.startswith(kind)}
    assert len(own) >= 2
    for name, value in own.items():
        assert value < (0.004 if name.endswith("_error") else 0.5), f"{name}: {value}"
    assert found["control_native"] > 0.01, "rows in MXFP8 would not be seen"


@pytest.mark.slow
def test_ops_agree_with_the_cpu_in_profile_fast() -> None:
    """Floats to a few steps of bfloat16; choices of the small cases have no near ties and must be equal."""
    found = run("interpreted_fast_cases.py")
    assert len(found) > 15
    wrong = {name: value for name, value in found.items() if not value < 0.008}
    assert wrong.pop("control") > 0.008, "a wrong weight would not be seen"
    assert wrong == {}


def test_tiles_of_experts_are_planned_in_one_launch_as_by_sorting() -> None:
    found = run("interpreted_plan.py")
    assert found["wrong"] == []
    assert found["control"], "another choice would not be seen"


def test_attention_rotates_within_its_launch_to_the_bits_of_three() -> None:
    found = run("interpreted_turned.py")
    assert found["wrong"] == []
    assert found["unseen"] == [], "another position, another partner or no way back would not be seen"
    assert found["ahead"] == [], "rows that are asked for ahead"


def test_latents_in_one_launch_are_those_of_three() -> None:
    found = run("interpreted_latents.py")
    assert found["wrong"] == []
    assert found["control"], "another position would not be seen"


def test_what_a_step_begins_with_is_that_of_the_ops_one_by_one() -> None:
    found = run("interpreted_first_rows.py")
    assert {name: verdict for name, verdict in found.items() if verdict != [True, False]} == {}
    assert len(found) == 6


@pytest.mark.slow
def test_sums_that_share_a_launch_keep_their_layout_on_a_chip() -> None:
    """Lanes add in the order of the layout, so another one would be another sum."""
    found = run("compiled_sums.py")
    norms = found["row_sums._norm_kernel"]
    assert found["latents._latent_kernel"] == norms[:2]
    assert found["site_rows._site_row_kernel"] == [layout for layout in norms[2:] for _ in range(2)]
    assert found["site_turns._turn_kernel"] == [layout for layout in norms[2:4] for _ in range(2)]
    assert found["row_sums._site_kernel"] == found["row_sums._squares_kernel"]
    assert len(set(norms)) == 4, "layouts follow the width"
