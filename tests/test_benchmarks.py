"""Every script under ``benchmarks`` can be imported: a name that moved is seen here, not on a device."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

IMPORT = """
import importlib, sys
failed = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
print("\\n".join(failed), end="")
"""


def failures(root: Path, *names: str) -> str:
    """What a process says that imports them all, with the folders that the entry scripts add."""
    folders = (str(root / "benchmarks"), str(root / "tests" / "helpers"))
    before = f"import sys; sys.path[:0] = {folders!r}"
    command = [sys.executable, "-P", "-c", before + IMPORT, *names]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_every_benchmark_can_be_imported(root_dir: Path) -> None:
    names = sorted(path.stem for path in (root_dir / "benchmarks").glob("*.py"))
    assert "gpu_engine" in names
    assert failures(root_dir, *names) == ""


def test_a_name_that_moved_is_told(root_dir: Path) -> None:
    assert failures(root_dir, "no_such_benchmark").startswith("no_such_benchmark: ModuleNotFoundError")
