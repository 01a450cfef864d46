"""Compile Triton kernels for a chip where there is none: launches compile and do not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NoDevice:
    """What Triton asks of a driver, without a device behind it."""

    architecture = 90

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(
    seen: Callable[[str, str], None] | None = None,
    binary: Callable[[str, str, bytes], None] | None = None,
    layouts: Callable[[str, str], None] | None = None,
    memory: Callable[[str, int], None] | None = None,
    architecture: int = 90,
) -> None:
    """From now on in this process every launch only compiles.

    ``seen`` gets its name and PTX text, ``binary`` the machine code, too;
    ``layouts`` the program with layouts, ``memory`` the bytes of shared memory.
    ``architecture`` is that of the chip, Hopper's if it is not given.
    """
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    device = NoDevice()
    device.architecture = architecture
    driver.set_active(device)
    run: Any = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        found = run(self, *args, grid=grid, warmup=True, **options)
        name = f"{self.fn.__module__.rsplit('.', 1)[-1]}.{self.fn.__name__}"
        if seen is not None:
            seen(name, found.asm["ptx"])
        if binary is not None:
            binary(name, found.asm["ptx"], found.asm["cubin"])
        if layouts is not None:
            layouts(name, found.asm["ttgir"])
        if memory is not None:
            memory(name, found.metadata.shared)
        return found

    JITFunction.run = compiled
