"""Kernels that may begin before the launch before them has ended touch no memory until it has."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import strict_cases

KERNELS = Path(strict_cases.__file__).parents[2] / "kernels" / "gpu"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")


def early_kernels() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Kernels that are told at their launch, by a parameter whose default is not to."""
    for path in sorted(KERNELS.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.args.defaults:
                if node.args.args[-1].arg == "EARLY":
                    yield f"{path.stem}.{node.name}", node


def waits_first(node: ast.FunctionDef) -> bool:
    body = node.body[ast.get_docstring(node) is not None :]
    return ast.unparse(body[0]) == "if EARLY:\n    after_launches_before()"


def test_the_first_thing_that_they_do_is_to_wait() -> None:
    found = dict(early_kernels())
    assert len(found) > 40
    assert [name for name, node in found.items() if not waits_first(node)] == []


def test_a_load_before_the_wait_is_seen() -> None:
    text = "def f(x, EARLY=False):\n    v = tl.load(x)\n    if EARLY:\n        after_launches_before()"
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    assert not waits_first(node)


@needs_triton
@pytest.mark.slow
def test_nothing_is_moved_before_the_wait_by_the_compiler() -> None:
    script = Path(strict_cases.__file__).parent / "compiled_early.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    assert len(found) > 30
    assert {name: one for name, one in found.items() if any(one)} == {}
