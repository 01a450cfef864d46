"""How kernels that divide their warps among tasks are declared: Gluon, where ``launching.py`` has Triton.

Such kernels name layouts and barriers themselves. They exist for chips with ``wgmma`` alone, and no
interpreter runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from triton.experimental import gluon

F = TypeVar("F", bound=Callable[..., Any])

_COUNTS = ("num_tiles", "length")


def warp_kernel(function: F) -> Any:
    """Compile ``function`` at its first launch; counts of things never make it another program."""
    return gluon.jit(function, do_not_specialize=_COUNTS)


def warp_device(function: F) -> F:
    """A function that such kernels inline."""
    compiled: F = gluon.jit(function)
    return compiled


def warp_launch(
    function: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int, **constants: Any
) -> None:
    """Run ``function`` on ``grid`` programs; an empty grid does nothing."""
    if 0 not in grid:
        function[grid](*arguments, num_warps=num_warps, enable_fp_fusion=False, **constants)
