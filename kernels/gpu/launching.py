"""The one way a device kernel is declared and launched.

Floating-point fusion is off: a multiply and an add stay two roundings, and only ``tl.fma`` is a fused one.
Tiles and warps come from static choices of the launchers; nothing is tuned at run time, because a tile chosen
by a stopwatch would be another program on another day.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl

from deepinfer.kernels.gpu.direct import Kernel

F = TypeVar("F", bound=Callable[..., Any])
Ptr = tl.tensor  # Triton reads annotations, and knows no other names than its own
"""A tensor as a kernel sees it: the address of its first element."""
Block = tl.tensor
"""Values of a tile inside a kernel, or one scalar."""


NPU_PROGRAMS = 65_535
"""Most programs of one launch on an Ascend chip."""
_COUNTS = ("num_rows", "num_items", "num_groups", "count")


def kernel(function: F) -> Kernel:
    """Compile ``function`` at its first launch; how many rows there are never makes it another program."""
    return Kernel(triton.jit(function, do_not_specialize=_COUNTS))


def device(function: F) -> F:
    """A function that kernels inline."""
    compiled: F = triton.jit(function)
    return compiled


@device
def after_launches_before() -> None:
    """Of a launch that begins before the one before has ended (``launch_pdl``): let the next one begin, and
    wait for what those before write.

    A kernel does so first of all if its parameter ``EARLY`` says so, which ``Kernel`` gives. It waits for the
    end of the launch before, which waited as well, or began late; so all that came earlier has ended, too.
    """
    tl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; griddepcontrol.wait; // $0",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def launch(
    function: Kernel, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4, **constants: Any
) -> None:
    """Run ``function`` on ``grid`` programs; an empty grid does nothing."""
    if 0 in grid:
        return
    place = next(a.device.type for a in arguments if isinstance(a, torch.Tensor))
    options = launch_options(place, grid, num_warps) | constants
    if place == "cuda":
        function.launch(grid, arguments, options)
    else:  # Triton's interpreter, its compiler alone, and Ascend's chips
        function.function[grid](*arguments, **options)


def launch_options(place: str, grid: tuple[int, ...], num_warps: int) -> dict[str, Any]:
    """What a launch is told beside its arguments, by type of device.

    Raises:
        ValueError: more programs than an Ascend launch takes; its kernel set cuts calls before that.
    """
    if place != "npu":
        return {"num_warps": num_warps, "enable_fp_fusion": False}
    if math.prod(grid) > NPU_PROGRAMS:
        raise ValueError(f"a launch of {math.prod(grid)} programs; an Ascend chip takes {NPU_PROGRAMS}")
    return {}  # it has no warps, and its compiler knows neither option


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``: the length of a tile that holds n values."""
    return 1 << max(n - 1, 0).bit_length()
