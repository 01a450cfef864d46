"""The ops of kernel set ``ascend`` in the exact interpreter: verdicts, grids, and what their kernels need.

Prints JSON: ``verdicts`` by covered case, ``largest_grid`` with a chip of few programs, ``needs`` by case
(types and operations of ``capability``; where Ascend has no op, the NVIDIA set runs), and
``control``: what records of the NVIDIA set need.
"""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import torch
from exact_interpreter import make_exact

make_exact()

from interpreted_cases import verdict  # noqa: E402
from strict_cases import Draws, all_cases  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from deepinfer.kernels.ascend.backend import AscendOps  # noqa: E402
from deepinfer.kernels.ascend.capability import UNSUPPORTED, UNSUPPORTED_TYPES, AscendChip  # noqa: E402
from deepinfer.kernels.dispatch import select_ops  # noqa: E402

FEW = 48
"""Programs of a launch of the chip that is played: every case has to be cut."""
COVERED = (
    "linear",
    "grouped",
    "pointwise",
    "norm",
    "rotate",
    "round trips",
    "hyper",
    "pool",
    "engram",
    "moe",
    "records",
    "copies",
    "attention",
    "index",
)
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
                if (operation, kind) in UNSUPPORTED or (operation, "") in UNSUPPORTED:
                    self.needs.add(f"{operation} {kind}".strip())
            return result

        return watched

    def grids(self) -> None:
        """Look at every launch from now on."""
        kind: Any = interpreter.InterpretedFunction
        original = kind.__getitem__

        def launched(function: Any, grid: tuple[int, ...]) -> Any:
            self.largest_grid = max(self.largest_grid, math.prod(grid))
            return original(function, grid)

        kind.__getitem__ = launched


def main() -> None:
    """Covered cases against the CPU, then what each case of the NVIDIA set needs."""
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's own, about infinities
    cpu, gpu = select_ops("cpu", bf16=False, num_threads=1), select_ops("triton", bf16=False)
    chip = AscendChip(name="few", max_programs=FEW)
    ascend = AscendOps(False, True, torch.device("cpu"), chip)
    small = {case.name: case for case in all_cases() if case.small}
    watch = Watch()
    watch.grids()
    watch.operations()
    verdicts, needs, largest_grid = {}, {}, 0
    for name, case in small.items():
        watch.needs.clear()
        if name.startswith(COVERED):
            verdicts[name] = verdict(case, cpu, ascend)
            largest_grid = watch.largest_grid
        else:
            watch.largest_grid = largest_grid  # the NVIDIA set's launches are not cut
            case.run(gpu, Draws(name))
        needs[name] = sorted(watch.needs)
    watch.needs.clear()
    bytes_as_they_are = next(name for name in small if name.startswith("records"))
    small[bytes_as_they_are].run(gpu, Draws(bytes_as_they_are))
    answer = {"verdicts": verdicts, "largest_grid": largest_grid, "needs": needs}
    print(json.dumps(answer | {"control": sorted(watch.needs)}))


if __name__ == "__main__":
    main()
