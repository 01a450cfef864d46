"""Run every small case in Triton's interpreter and on the CPU; print name and verdict as JSON.

A process of its own, because triton decides at its first import whether it interprets.
"""

from __future__ import annotations

import json
import warnings

import torch
from exact_interpreter import make_exact, make_unfused

make_exact()

from strict_cases import Case, Draws, all_cases  # noqa: E402

from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.interface import Ops  # noqa: E402


def verdict(case: Case, cpu: Ops, gpu: Ops) -> str:
    """What differs, or nothing."""
    wanted, found = case.run(cpu, Draws(case.name)), case.run(gpu, Draws(case.name))
    for number, (a, b) in enumerate(zip(wanted, found, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"output {number}: {a.dtype} {list(a.shape)}, found {b.dtype} {list(b.shape)}"
        same = a.contiguous().view(torch.uint8) == b.contiguous().view(torch.uint8)
        if not same.all():
            return f"output {number}: {(a != b).sum()} of {a.numel()} differ"
    return ""


def main() -> None:
    """Profile strict."""
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's own, about infinities
    cpu, gpu = select_ops("cpu", bf16=False, num_threads=1), select_ops("triton", bf16=False)
    small = [case for case in all_cases() if case.small]
    verdicts = {case.name: verdict(case, cpu, gpu) for case in small}
    make_unfused()
    control = next(case for case in small if case.name.startswith("norm"))
    print(json.dumps(verdicts | {"control": verdict(control, cpu, gpu)}))


if __name__ == "__main__":
    main()
