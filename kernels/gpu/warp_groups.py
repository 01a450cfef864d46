"""How kernels that divide their warps among tasks are declared: Gluon, where ``launching.py`` has Triton.

Such kernels name layouts and barriers themselves. They exist for chips with ``wgmma`` alone, and no
interpreter runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

F = TypeVar("F", bound=Callable[..., Any])

_COUNTS = ("num_tiles", "length", "num_rows", "row_tiles")


def warp_kernel(function: F) -> Any:
    """Compile ``function`` at its first launch; counts of things never make it another program."""
    return gluon.jit(function, do_not_specialize=_COUNTS)


def warp_device(function: F) -> F:
    """A function that such kernels inline."""
    compiled: F = gluon.jit(function)
    return compiled


def warp_layout(function: F) -> F:
    """A function of constants that such kernels call for a layout."""
    known: F = gluon.constexpr_function(function)
    return known


@warp_device
def after_launches_before() -> None:
    """Wait for what earlier launches of the stream write.

    Launches below may begin while the one before ends; nothing that it could have written, or still read,
    may be touched before this. Every program has to come here.
    """
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@warp_device
def next_may_begin() -> None:
    """The launch that follows may take what room there is, if it was made to wait as above."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


def warp_launch(
    function: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    num_warps: int,
    early: bool = False,
    **constants: Any,
) -> None:
    """Run ``function`` on ``grid`` programs; an empty grid does nothing.

    ``early``: before launches before have ended; for functions that call ``after_launches_before``.
    """
    if 0 not in grid:
        options = {"num_warps": num_warps, "enable_fp_fusion": False, "launch_pdl": early}
        function[grid](*arguments, **options, **constants)
