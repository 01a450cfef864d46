"""The one way a CPU kernel is compiled.

Numba, no fast-math, no GIL, cached under a digest of the kernel sources.

numba's own cache looks only at the file of the decorated function. A kernel here inlines functions of other
files, so a change in one of those would leave a stale binary in use. The cache folder is therefore named by
a digest of every source file of this room: an edited kernel is always a recompiled kernel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config as numba_config
from numba.core import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def kernel_sources_digest() -> str:
    """SHA-256 (hex) over names and bytes of all source files of ``kernels/cpu``.

    The identity of the kernel set.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def cache_folder() -> Path:
    """Where compiled kernels are kept.

    ``$XDG_CACHE_HOME`` (or ``~/.cache``) ``/deepinfer/kernels/<digest>``.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(
        "~/.cache"
    )  # Path.home() raises where there is no home; this stays "~"
    return Path(root) / "deepinfer" / "kernels" / kernel_sources_digest()[:16]


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


_CACHE_FOLDER = cache_folder()
_CAN_CACHE = _is_writable(_CACHE_FOLDER)  # a read-only home costs recompilation, never the run


def kernel(function: F) -> F:
    """Compile ``function`` at its first call.

    ``error_model="numpy"`` makes a division by zero an IEEE infinity instead of an exception, and keeps
    loops with divisions vectorisable. ``fastmath`` stays off: LLVM may then neither reassociate a sum nor
    contract a multiply and an add, so the order written is the order executed.
    """
    saved = numba_config.CACHE_DIR  # type: ignore[attr-defined]
    numba_config.CACHE_DIR = str(_CACHE_FOLDER)  # type: ignore[attr-defined]
    try:
        compiled = numba.njit(nogil=True, cache=_CAN_CACHE, error_model="numpy", fastmath=False)(function)
    finally:
        numba_config.CACHE_DIR = saved  # type: ignore[attr-defined]
    return cast(F, compiled)


def job(function: Callable[[int, int, int], int]) -> Callable[[], int]:
    """Compile ``function(line, low, high)`` for who calls it by its address, which what comes back gives.

    That is what other compiled code calls, without the interpreter; see ``job_threads``.
    """

    @cache
    def compiled() -> Any:
        saved = numba_config.CACHE_DIR  # type: ignore[attr-defined]
        numba_config.CACHE_DIR = str(_CACHE_FOLDER)  # type: ignore[attr-defined]
        try:
            signature = types.int64(types.int64, types.int64, types.int64)
            return numba.cfunc(signature, cache=_CAN_CACHE, error_model="numpy", fastmath=False)(function)
        finally:
            numba_config.CACHE_DIR = saved  # type: ignore[attr-defined]

    return lambda: int(compiled().address)


def emitted(function: Any) -> Any:
    """A numba intrinsic.

    A function that writes LLVM code for its call instead of being compiled from Python.
    """
    return intrinsic(function)


def inlined(function: F) -> F:
    """Compile a scalar helper that kernels call; LLVM inlines it into their loops."""
    return cast(F, numba.njit(nogil=True, error_model="numpy", fastmath=False, inline="never")(function))
