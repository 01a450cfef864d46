"""Kernels that begin before the launch before them has ended touch no memory until it has, weights aside."""

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
    return pointers_ahead(node) == set()


def pointers_ahead(node: ast.FunctionDef) -> set[str] | None:
    """Parameters that addresses read before the wait are made of; None without a wait, or if it stores."""
    known = {one.arg: {one.arg} for one in node.args.args if ast.unparse(one.annotation or one) == "Ptr"}
    found: set[str] = set()
    for line in node.body[ast.get_docstring(node) is not None :]:
        if ast.unparse(line) == "if EARLY:\n    after_launches_before()":
            return found
        calls = [call for call in ast.walk(line) if isinstance(call, ast.Call)]
        names = [ast.unparse(call.func) for call in calls]
        if not isinstance(line, ast.Assign) or not {n for n in names if n.startswith("tl.")} <= AHEAD:
            return None
        for call, name in zip(calls, names, strict=True):
            if name == "tl.load":
                found |= made_of(call, known)
        for target in ast.walk(ast.Tuple(line.targets)):
            if isinstance(target, ast.Name):
                known[target.id] = made_of(line.value, known)
    return None


def made_of(node: ast.AST, known: dict[str, set[str]]) -> set[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return set[str]().union(*(known.get(name, set()) for name in names))


AHEAD = {"tl.load", "tl.arange", "tl.program_id"}
"""What may come before a wait."""


def test_the_first_thing_that_they_do_is_to_wait() -> None:
    found = dict(early_kernels())
    assert len(found) > 40
    ahead = {name: pointers_ahead(node) for name, node in found.items() if not waits_first(node)}
    assert ahead == {"gemm_few._few_kernel": {"weights"}}


@pytest.mark.parametrize(
    ("ahead", "pointers"),
    [
        ("v = tl.load(x)", {"x"}),
        ("a = x + tl.arange(0, 4)\n    v = tl.load(a)", {"x"}),
        ("a, b = w + 1, x\n    v = tl.load(a)", {"w", "x"}),
        ("tl.store(w, 1)", None),
        ("v = tl.atomic_add(w, 1)", None),
        ("for i in range(3):\n        v = tl.load(x + i)", None),
    ],
)
def test_what_comes_before_the_wait_is_seen(ahead: str, pointers: set[str] | None) -> None:
    wait = "if EARLY:\n        after_launches_before()"
    (node,) = ast.parse(f"def f(w: Ptr, x: Ptr, EARLY=False):\n    {ahead}\n    {wait}").body
    assert isinstance(node, ast.FunctionDef)
    assert pointers_ahead(node) == pointers
    (node,) = ast.parse(f"def f(w: Ptr, x: Ptr, EARLY=False):\n    {ahead}").body
    assert isinstance(node, ast.FunctionDef)
    assert pointers_ahead(node) is None


@needs_triton
@pytest.mark.slow
def test_nothing_is_moved_before_the_wait_by_the_compiler() -> None:
    script = Path(strict_cases.__file__).parent / "compiled_early.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    assert len(found) > 30
    ahead = {name: {kind for part in one for kind in part} for name, one in found.items() if any(one)}
    assert ahead == {"gemm_few._few_kernel": {"ld.global"}}
