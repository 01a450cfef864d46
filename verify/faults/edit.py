"""Changes the source of a function of the engine while a block runs: the code itself is wrong, no hook is.

The changed function is compiled in its own module, so that it sees what the original saw, and put in the
place of the original wherever a module or class holds it. Kernels are compiled without the cache on disk.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from types import ModuleType
from typing import Any

from deepinfer.kernels.uncached import uncached_kernel


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One change of source text.

    Attributes:
        module: dotted name below ``deepinfer``.
        function: its name, ``Class.method`` for a method.
        old: text that occurs exactly once in the function.
        new: what stands there instead.
    """

    module: str
    function: str
    old: str
    new: str


class EditError(Exception):
    """An edit does not fit the source any more; the fault has to be written anew."""


@contextmanager
def edited(*edits: Edit) -> Iterator[None]:
    """Run a block with the edits in force, then restore everything.

    Raises:
        EditError: an edit does not fit.
    """
    importlib.import_module("deepinfer.engine.llm")
    importlib.import_module("deepinfer.kernels.cpu.backend")
    # all of it, before anything changes: a module imported meanwhile would keep what is changed
    undo: list[tuple[Any, str, Any]] = []
    try:
        for place, changes in groupby(edits, key=lambda edit: (edit.module, edit.function)):
            module = importlib.import_module(f"deepinfer.{place[0]}")
            owner, name = _owner(module, place[1])
            original = inspect.getattr_static(owner, name)
            changed = _changed(module, list(changes), original)
            places = [(owner, name)] if isinstance(owner, type) else _holders(original)
            for holder, attribute in places:
                undo.append((holder, attribute, original))
                setattr(holder, attribute, changed)
        yield
    finally:
        for holder, attribute, original in reversed(undo):
            setattr(holder, attribute, original)


def _owner(module: ModuleType, function: str) -> tuple[Any, str]:
    *path, name = function.split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part)
    if name not in vars(owner):
        raise EditError(f"{module.__name__} has no {function}")
    return owner, name


def _changed(module: ModuleType, edits: Sequence[Edit], original: Any) -> Any:
    """The function compiled from its changed source."""
    function: Any = getattr(original, "py_func", original)  # a kernel's own Python function
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        times = source.count(edit.old)
        if times != 1:
            raise EditError(f"{edit.module}.{edit.function} has {edit.old!r} {times} times, not once")
        source = source.replace(edit.old, edit.new)
    text = "from __future__ import annotations\n" + source
    path = edits[0].function
    space: dict[str, Any] = vars(module)
    kept: dict[str, Any] = {
        decorator: space[decorator] for decorator in ("kernel", "inlined") if decorator in space
    }
    made: dict[str, Any] = {}
    try:
        space.update(dict.fromkeys(kept, uncached_kernel))
        exec(compile(text, f"<fault in {path}>", "exec"), space, made)
    finally:
        space.update(kept)
    return made[path.split(".")[-1]]


def _holders(original: Any) -> list[tuple[Any, str]]:
    """Every module of ours that holds the object, under any name."""
    return [
        (module, attribute)
        for name, module in sorted(sys.modules.items())
        if name.startswith("deepinfer.") and isinstance(module, ModuleType)
        for attribute, value in list(vars(module).items())
        if value is original
    ]
