"""Launches of kernels that were launched before, past the work that Triton does for every launch.

Triton binds the arguments of a launch to the kernel's signature, asks which program they need, and prepares
hooks; that costs a host two or three times what the driver takes. What decides about the program are a few
traits of the arguments. So the first launch of its traits is Triton's, and its program is kept; the next ones
hand their arguments to that program. Traits may tell apart more than Triton does, never less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from deepinfer.kernels.gpu.capability import has_wgmma

Grid = tuple[int, ...]
Trait = object
"""Hashable; equal traits of all arguments mean one program."""


@dataclass(frozen=True)
class _Program:
    """A compiled kernel on its device, and the values of its parameters behind the launch's arguments."""

    compiled: Any
    constants: tuple[object, ...]

    def launch(self, grid: Grid, device: int, arguments: tuple[Any, ...]) -> None:
        """Hand it to the driver; hooks of profilers are not called, three times None."""
        x, y, z = (*grid, 1, 1)[:3]
        stream = driver.active.get_current_stream(device)
        found = self.compiled
        found.run(
            *(x, y, z, stream, found.function, found.packed_metadata, None, None, None),
            *(*arguments, *self.constants),
        )


class Kernel:
    """A kernel of Triton's with its programs so far."""

    def __init__(self, function: Any) -> None:
        """``function`` is what ``triton.jit`` made: no program yet."""
        self.function = function
        self._parameters: tuple[Any, ...] = tuple(getattr(function, "params", ()))  # none in the interpreter
        self._programs: dict[tuple[object, ...], _Program] = {}

    @property
    def num_programs(self) -> int:
        """Programs that were kept."""
        return len(self._programs)

    def launch(self, grid: Grid, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Run on ``grid`` programs of the current CUDA device.

        Args:
            grid: one to three positive counts.
            arguments: the first parameters.
            options: the other parameters, all of them constants, and options of the compiler.
        """
        device: int = driver.active.get_current_device()
        key = (device, tuple(options.items()), *map(trait_of, arguments, self._parameters))
        program = self._programs.get(key)
        if program is not None:
            program.launch(grid, device, arguments)
            return
        options = {**options, **self._begin(device, options)}
        compiled = self.function[grid](*arguments, **options)
        rest = self._parameters[len(arguments) :]
        self._programs[key] = _Program(compiled, tuple(options[one.name] for one in rest))

    def _begin(self, device: int, options: Mapping[str, Any]) -> dict[str, bool]:
        """Whether a kernel that can wait for the launches before it, by ``EARLY``, begins before they end."""
        if "EARLY" in options or all(one.name != "EARLY" for one in self._parameters):
            return {}
        if not has_wgmma(torch.device("cuda", device)):
            return {"EARLY": False}
        return {"EARLY": True, "launch_pdl": True}


def trait_of(value: Any, parameter: Any) -> Trait:
    """What a program may depend on in the ``value`` of a ``parameter`` (``triton.runtime.jit.KernelParam``).

    Raises:
        TypeError: a type that no launcher here hands over, such as a number of numpy's.
    """
    if isinstance(value, torch.Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, TensorDescriptor):
        return value.base.dtype, *value.block_shape
    if parameter.is_constexpr or value is None:
        return type(value), value
    kind = type(value)
    if kind is int:
        words = (value.bit_length() + 32) // 32  # int32, int64 or uint64
        return words if parameter.do_not_specialize else (words, value == 1, value % 16 == 0)
    if kind is float or kind is bool:
        return kind
    raise TypeError(f"launch: {parameter.name} is a {kind.__name__}; hand over tensors and Python's numbers")
