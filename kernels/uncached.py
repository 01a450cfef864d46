"""Compiles a kernel whose source is not in a file: what the self-test of verify does with a seeded fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def uncached_kernel(function: F) -> F:
    """As ``kernels.cpu.compiled.kernel``, without a folder to keep the result in."""
    return cast(F, numba.njit(nogil=True, error_model="numpy", fastmath=False)(function))
