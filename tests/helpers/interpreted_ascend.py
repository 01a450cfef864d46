"""The ops of kernel set ``ascend`` in the exact interpreter: verdicts, grids, and what their kernels need.

Prints JSON: ``verdicts`` by case, ``largest_grid`` with a chip of few programs, ``needs`` by case (types and
operations of ``capability`` that Ascend lacks), ``control``: what the NVIDIA set needs for some cases, and
``logs``: see ``interpreted_log``. With the argument ``fast``, profile fast on both sides.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from typing import Any

import torch
from exact_interpreter import make_exact

make_exact()

from interpreted_cases import verdict  # noqa: E402
from interpreted_log import report  # noqa: E402
from strict_cases import Draws, all_cases  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from deepinfer.kernels.ascend.backend import AscendOps  # noqa: E402
from deepinfer.kernels.ascend.capability import (  # noqa: E402
    LARGEST_MOD,
    UNSUPPORTED,
    UNSUPPORTED_TYPES,
    AscendChip,
)
from deepinfer.kernels.dispatch import select_ops  # noqa: E402

FEW = 48
"""Programs of a launch of the chip that is played: every case has to be cut."""
FEWER = 4
"""Programs of a launch for cases of few rows."""
CONTROLS = ("records", "route")
OPERATIONS = {"create_select": "where", "create_trans": "trans", "create_inline_asm": "inline_asm"}


def type_of(value: Any) -> str:
    """Type of the values of a handle, empty for anything else."""
    return str(value.dtype.scalar) if isinstance(value, interpreter.TensorHandle) else ""


class Watch:
    """Writes down what kernels use."""

    def __init__(self) -> None:
        self.needs: set[str] = set()
        self.largest_grid = 0

    def operations(self) -> None:
        """Look at every operation of the interpreter from now on."""
        builder: Any = interpreter.InterpreterBuilder
        for name in [*filter(lambda name: name.startswith("create_"), dir(builder)), "cast_impl"]:
            setattr(builder, name, self._watched(name, getattr(builder, name)))

    def _watched(self, name: str, function: Any) -> Any:
        def watched(builder: Any, *arguments: Any, **options: Any) -> Any:
            result = function(builder, *arguments, **options)
            operation = OPERATIONS.get(name, "")
            # a comparison keeps the label of what it compared: the condition of a selection is no value
            values = (*arguments[operation == "where" :], result)
            for kind in {type_of(value) for value in values}:
                if kind in UNSUPPORTED_TYPES:
                    self.needs.add(kind)
                if name == "create_srem" and kind == "int64":
                    self._mod(values)
                if (operation, kind) in UNSUPPORTED or (operation, "") in UNSUPPORTED:
                    self.needs.add(f"{operation} {kind}".strip())
            return result

        return watched

    def _mod(self, values: tuple[Any, ...]) -> None:
        if max(int(abs(value.data).max()) for value in values if type_of(value)) > LARGEST_MOD:
            self.needs.add("mod int64")

    def grids(self) -> None:
        """Look at every launch from now on."""
        kind: Any = interpreter.InterpretedFunction
        original = kind.__getitem__

        def launched(function: Any, grid: tuple[int, ...]) -> Any:
            self.largest_grid = max(self.largest_grid, math.prod(grid))
            return original(function, grid)

        kind.__getitem__ = launched


def main() -> None:
    """Every case against the CPU, then what some cases of the NVIDIA set need."""
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's own, about infinities
    bf16 = sys.argv[1:] == ["fast"]
    cpu, gpu = select_ops("cpu", bf16=bf16, num_threads=1), select_ops("triton", bf16=False)
    few, fewer = (
        AscendOps(bf16, True, torch.device("cpu"), AscendChip(name="few", max_programs=programs))
        for programs in (FEW, FEWER)
    )
    small = {case.name: case for case in all_cases() if case.small}
    logs = report(False)
    watch = Watch()
    watch.grids()
    watch.operations()
    verdicts, needs, control = {}, {}, {}
    for name, case in small.items():
        watch.needs.clear()
        verdicts[name] = verdict(case, cpu, fewer if name.startswith(("route", "sample")) else few)
        needs[name] = sorted(watch.needs)
    largest_grid = watch.largest_grid  # launches of the NVIDIA set are not cut
    for kind in CONTROLS:
        watch.needs.clear()
        name = next(name for name in small if name.startswith(kind))
        small[name].run(gpu, Draws(name))
        control[kind] = sorted(watch.needs)
    answer = {"verdicts": verdicts, "largest_grid": largest_grid, "needs": needs, "control": control}
    print(json.dumps(answer | {"logs": logs}))


if __name__ == "__main__":
    main()
