"""A launch past Triton's own way hands the same arguments to the same program."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import strict_cases

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
    pytest.mark.skipif(sys.platform != "linux", reason="triton's compiler"),
]


def launches(*forgotten: str) -> dict[str, int]:
    script = Path(strict_cases.__file__).parent / "direct_launches.py"
    done = subprocess.run(
        [sys.executable, str(script), *forgotten], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_every_launch_gets_the_program_that_triton_chooses() -> None:
    found = launches()
    assert found["different"] == 0
    assert found["through_triton"] == found["kept"] < found["launches"] / 2


@pytest.mark.parametrize("trait", ["alignment", "dtype", "ones", "constants"])
@pytest.mark.slow
def test_a_forgotten_trait_is_seen(trait: str) -> None:
    assert launches(trait)["different"] > 0
