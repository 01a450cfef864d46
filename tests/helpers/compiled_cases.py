"""Compile every kernel of the small cases for a Hopper chip; print counts of PTX instructions as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter

import torch
import turn_cases
from compile_only import compile_only
from strict_cases import Draws, all_cases

INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+ )?([a-z][\w.]*)", re.MULTILINE)


def main() -> None:
    """Launches give no results here, so only names and instructions count."""
    counts: dict[str, Counter[str]] = {}

    def seen(name: str, ptx: str) -> None:
        counts.setdefault(name, Counter()).update(INSTRUCTION.findall(ptx))

    compile_only(seen)
    from deepinfer.kernels.dispatch import select_ops
    from deepinfer.kernels.gpu.backend import GpuOps

    for case in all_cases():
        if case.small:
            case.run(GpuOps(False, True, torch.device("cpu")), Draws(case.name))
    turn_cases.play_all(GpuOps(False, True, torch.device("cpu")), select_ops("reference", bf16=False))
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
