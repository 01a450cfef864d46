"""Launch a kernel with many kinds of arguments on a driver that only takes notes; print what it was handed.

With an argument, a trait is forgotten: ``alignment``, ``ones``, ``dtype`` or ``constants``.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from typing import Any

import torch
import triton.language as tl
from compile_only import NoDevice
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from deepinfer.kernels.gpu import direct
from deepinfer.kernels.gpu.launching import Ptr, kernel

LAUNCHED: list[str] = []
PLAIN = 0


class Utils:
    """Loads nothing and numbers what it is given: equal programs are one."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, ...]:
        whole = device.to_bytes(1, "little") + binary
        if whole not in self.loaded:
            self.loaded.append(whole)
        return 1, self.loaded.index(whole), 0, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 232448}


class Launcher:
    """Writes down launches."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
        arguments = [
            argument.data_ptr()
            if isinstance(argument, torch.Tensor)
            else (argument.base.data_ptr(), argument.block_shape)
            if isinstance(argument, TensorDescriptor)
            else argument
            for argument in rest[3:]  # behind the hooks
        ]
        LAUNCHED.append(repr((x, y, z, stream, function, packed, arguments)))


class Notes(NoDevice):
    """Two devices."""

    launcher_cls = Launcher

    def __init__(self) -> None:
        self.utils, self.device = Utils(), 0

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 7 + device


@kernel
def _copy_kernel(
    x: Ptr,
    y: Ptr,
    out: Ptr,
    factor: float,
    length: int,
    num_rows: int,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x + i, i < length, other=0.0).to(tl.float32) * factor
    if ADD:
        here += y.load([0, 0]).to(tl.float32).sum() if ADD == 2 else num_rows
    tl.store(out + i, here, i < length)


def cases() -> Any:
    """Arguments and options."""
    wide, half = torch.zeros(4096), torch.zeros(4096, dtype=torch.bfloat16)
    matrix = torch.zeros(64, 64, dtype=torch.bfloat16)
    for x, length, num_rows in product((wide, wide[1:], half), (1, 17, 128), (1, 16)):
        yield (x, None, wide, 0.5, length, num_rows), {"num_warps": 4, "BLOCK": 1024, "ADD": 1}
    for warps, block in product((2, 4), (512, 1024)):
        yield (wide, wide, wide, 2.0, 64, 5), {"num_warps": warps, "BLOCK": block, "ADD": 0}
        yield (wide, wide, wide, 2.0, 64, 5, block), {"num_warps": warps, "ADD": 0}  # a constant by its place
    for data, rows in ((matrix, 16), (matrix, 32), (matrix.to(torch.float32), 16)):
        described = TensorDescriptor.from_tensor(data, [rows, 32])
        yield (wide, described, wide, 1.0, 64, 5), {"num_warps": 4, "BLOCK": 64, "ADD": 2}


def forget(trait: str) -> None:
    """Break the key."""
    sound = direct.trait_of

    def faulty(value: Any, parameter: Any) -> object:
        found = sound(value, parameter)
        if trait == "alignment" and isinstance(value, torch.Tensor):
            return value.dtype
        if trait == "dtype" and isinstance(value, torch.Tensor):
            return value.data_ptr() % 16
        if trait == "ones" and parameter.name == "length":
            return None
        if trait == "constants" and parameter.is_constexpr:
            return None
        return found

    direct.trait_of = faulty  # type: ignore[assignment]


def main() -> None:
    """Two rounds of every case on two devices, by the way under test and by Triton's."""
    global PLAIN
    notes = Notes()
    driver.set_active(notes)
    for trait in sys.argv[1:]:
        forget(trait)
    run: Any = JITFunction.run

    def counted(*arguments: Any, **named: Any) -> Any:
        global PLAIN
        PLAIN += 1
        return run(*arguments, **named)

    JITFunction.run = counted
    given = list(cases())
    found: dict[str, list[str]] = {}
    calls = {}
    for way in ("direct", "triton"):
        for _ in range(2):
            for device in (0, 1):
                notes.device = device
                for arguments, options in given:
                    if way == "direct":
                        _copy_kernel.launch((3, 2), arguments, options)
                    else:
                        _copy_kernel.function[3, 2](*arguments, **options)
        found[way], calls[way] = list(LAUNCHED), PLAIN
        LAUNCHED.clear()
        PLAIN = 0
    different = sum(one != other for one, other in zip(found["direct"], found["triton"], strict=True))
    print(
        json.dumps(
            {
                "launches": len(found["direct"]),
                "different": different,
                "kept": _copy_kernel.num_programs,
                "through_triton": calls["direct"],
            }
        )
    )


if __name__ == "__main__":
    main()
