"""Every small case in profile fast, device kernels in the interpreter against the CPU set; prints JSON.

A float output counts with its relative error, an integer one with the share of values that differ.
"""

from __future__ import annotations

import json
import warnings

import torch
from exact_interpreter import make_exact

make_exact()

from strict_cases import Case, Draws, all_cases  # noqa: E402

from deepinfer.kernels.dispatch import select_ops  # noqa: E402
from deepinfer.kernels.interface import Ops  # noqa: E402

REJECTED_ROW = 4
"""Of the cases of ``sample``: the row whose words are all rejected."""


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """0 for equal outputs; infinite if one of two values that differ is no number."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return float("inf")
    differ = ~((found == wanted) | (found.isnan() & wanted.isnan()))
    if not found.is_floating_point():
        return float(differ.double().mean())
    off = (found.double() - wanted.double())[differ]
    return float(off.norm() / wanted[wanted.isfinite()].double().norm()) if len(off) else 0.0


def worst(case: Case, cpu: Ops, gpu: Ops) -> float:
    """The largest distance of its outputs.

    Of samples without the row whose words are all rejected: it takes the last word modulo the sum of all
    weights, where one unit of 2**-31 leads from the last token to the first.
    """
    pairs = zip(case.run(gpu, Draws(case.name)), case.run(cpu, Draws(case.name)), strict=True)
    rows = slice(REJECTED_ROW) if case.name.startswith("sample") else slice(None)
    return max(distance(a[rows], b[rows]) for a, b in pairs)


def main() -> None:
    """All but the strict kernels' own witness; the control changes one weight in a hundred by a tenth."""
    warnings.simplefilter("ignore", RuntimeWarning)
    cpu, gpu = select_ops("cpu", bf16=True, num_threads=1), select_ops("triton", bf16=True)
    small = [case for case in all_cases() if case.small and not case.name.startswith("written out")]
    found = {case.name: worst(case, cpu, gpu) for case in small}
    pack = gpu.pack_linear

    def damaged(weight: torch.Tensor) -> object:
        changed = weight.clone()
        changed.view(-1)[::100] *= 1.1
        return pack(changed)

    gpu.pack_linear = damaged  # type: ignore[method-assign]
    found["control"] = worst(next(case for case in small if case.name.startswith("linear")), cpu, gpu)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
