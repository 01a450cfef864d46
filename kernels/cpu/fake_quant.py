"""Cache round trips: quantise to MXFP8, MXFP4 or FP4 with e4m3 scales and back, in place.

model.md section 8.

All three only round, so the result is exact and the same in every implementation; ``records`` holds
the packed bytes of the same formats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.block_codes import (
    fp4_scale,
    mxfp4_exponent,
    mxfp8_exponent,
    power,
    round_e2m1,
    round_e4m3,
)
from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]

MXFP8, MXFP4, FP4_E4M3 = 0, 1, 2
_GROUPS = {MXFP8: 32, MXFP4: 32, FP4_E4M3: 16}


@inlined
def _group_fp4(x: Float32, amax: np.float32) -> None:
    scale = fp4_scale(amax)
    for i in range(x.shape[0]):
        x[i] = np.copysign(round_e2m1(abs(x[i] / scale)) * scale, x[i])


@inlined
def _group_mxfp4(x: Float32, amax: np.float32) -> None:
    exponent = mxfp4_exponent(amax)
    scale, inverse = power(exponent), power(np.int32(254) - exponent)
    for i in range(x.shape[0]):
        x[i] = np.copysign(round_e2m1(abs(x[i] * inverse)) * scale, x[i])


@inlined
def _group_mxfp8(x: Float32, amax: np.float32) -> None:
    exponent = mxfp8_exponent(amax)
    scale, inverse = power(exponent), power(np.int32(254) - exponent)
    for i in range(x.shape[0]):
        x[i] = np.copysign(round_e4m3(abs(x[i] * inverse)) * scale, x[i])


@kernel
def round_trip_kernel(x: Float32, kind: int, group: int, low: int, high: int) -> None:
    """Rows ``low .. high`` of ``x`` [T, C] as records of ``kind`` give them back, in place."""
    for row in range(low, high):
        for start in range(0, x.shape[1], group):
            part = x[row, start : start + group]
            amax = np.float32(0.0)
            for i in range(part.shape[0]):
                amax = max(amax, abs(part[i]))
            if kind == FP4_E4M3:
                _group_fp4(part, amax)
            elif kind == MXFP4:
                _group_mxfp4(part, amax)
            else:
                _group_mxfp8(part, amax)


def round_trip_(x: torch.Tensor, kind: int, workers: Workers) -> torch.Tensor:
    """Replace every row of ``x`` float32 [..., C] by what its cache record would give back; returns ``x``.

    Args:
        x: contiguous; C a multiple of the group (32, or 16 for ``FP4_E4M3``); finite.
        kind: ``MXFP8``, ``MXFP4`` or ``FP4_E4M3``.
    """
    group = _GROUPS[kind]
    if x.shape[-1] % group or not x.is_contiguous():
        raise ValueError(f"round_trip_: width {x.shape[-1]} must be a multiple of {group} and x contiguous")
    rows = x.view(-1, x.shape[-1]).numpy()
    workers.run(rows.shape[0], 1, lambda low, high: round_trip_kernel(rows, kind, group, low, high))
    return x
