"""Compile kernels that begin early for a Hopper chip; print what memory each touches before it waits."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
import turn_cases
from attention_cases import Cases
from compile_only import compile_only
from strict_cases import Draws, all_cases

TOUCHED = re.compile(r"(griddepcontrol\.wait|\b(?:ld|st)\.global|\batom\.|\bred\.|\bcp\.async)")
FOUND: dict[str, list[list[str]]] = {}


def seen(name: str, ptx: str) -> None:
    """What a program does, in its order, before the first wait; all of it if it never waits."""
    operations = TOUCHED.findall(ptx)
    if name in EARLY:
        end = operations.index("griddepcontrol.wait") if "griddepcontrol.wait" in operations else None
        FOUND.setdefault(name, []).append(operations[:end] if end is not None else ["no wait"])


EARLY: set[str] = set()


def main() -> None:
    """The small cases of profile fast, attention that rotates, and turns."""
    compile_only(seen)
    from triton.runtime.jit import JITFunction

    from deepinfer.kernels.dispatch import select_ops
    from deepinfer.kernels.gpu.fast_backend import FastGpuOps

    run: Any = JITFunction.run

    def early(self: Any, *args: Any, **options: Any) -> Any:
        if "EARLY" in self.arg_names:
            EARLY.add(f"{self.fn.__module__.rsplit('.', 1)[-1]}.{self.fn.__name__}")
            options |= {"EARLY": True, "launch_pdl": True}
        return run(self, *args, **options)

    JITFunction.run = early
    ops = FastGpuOps(True, torch.device("cpu"))
    for case in all_cases():
        if case.small and not case.name.startswith("written out"):
            case.run(ops, Draws(case.name))
    for packed in (False, True):
        Cases(ops, 0).attend(packed, 2, 4, 32)
    turn_cases.play_all(ops, select_ops("reference", bf16=False))
    print(json.dumps(FOUND))


if __name__ == "__main__":
    main()
