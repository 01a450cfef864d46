"""The compiled selection, run on a CPU: right, and no two warps meet in memory between barriers.

What this caught first: numbers given for keys that are not loaded, which the compiler had filled in by words
and not by keys, so that a row of few entries chose what was not there. The interpreter knows no such thing.
"""

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


def run(*names: str) -> dict[str, dict[str, int]]:
    script = Path(strict_cases.__file__).parent / "compiled_selection.py"
    done = subprocess.run([sys.executable, str(script), *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def test_the_compiled_selection_is_right_and_faults_show() -> None:
    names = ["few", "same", "real", "torn", "bent"]
    found = run(*names)
    assert found.pop("torn")["races"] > 0, "no barrier, and no race seen"
    assert found.pop("bent")["outside"] > 0, "a wrong sum of a warp would not be seen"
    assert found == {name: {"wrong": 0, "outside": 0, "races": 0} for name in names[:3]}


@pytest.mark.slow
def test_the_compiled_first_level_is_right_in_one_part_and_behind_others() -> None:
    found = run("blocks", "parts", "ragged")
    assert found.pop("ragged")["races"] > 0, "no barrier, and no race seen"
    assert found == {name: {"wrong": 0, "outside": 0, "races": 0} for name in ("blocks", "parts")}
