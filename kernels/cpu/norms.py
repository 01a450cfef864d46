"""RMSNorm: the mean square is one fma chain over ascending channels.

Eight rows run side by side to hide its latency.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import fma, rsqrt, to_bf16
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
_ZERO = np.float32(0.0)
LANES = 8


@inlined
def square_sums(x: Float32, row: int, count: int, sums: Float32) -> None:
    """``sums[r]`` = chain of x[row + r, d]**2 over ascending d, for ``count`` rows (at most eight).

    Eight chains take as long as one. Two to seven rows repeat their last one.
    """
    if count == 1:
        s0 = _ZERO
        one = x[row]
        for d in range(x.shape[1]):
            s0 = fma(one[d], one[d], s0)
        sums[0] = s0
        return
    last = row + count - 1
    x0, x1, x2, x3 = x[row], x[row + 1], x[min(row + 2, last)], x[min(row + 3, last)]
    x4, x5 = x[min(row + 4, last)], x[min(row + 5, last)]
    x6, x7 = x[min(row + 6, last)], x[min(row + 7, last)]
    s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
    s4, s5, s6, s7 = _ZERO, _ZERO, _ZERO, _ZERO
    for d in range(x.shape[1]):
        s0 = fma(x0[d], x0[d], s0)
        s1 = fma(x1[d], x1[d], s1)
        s2 = fma(x2[d], x2[d], s2)
        s3 = fma(x3[d], x3[d], s3)
        s4 = fma(x4[d], x4[d], s4)
        s5 = fma(x5[d], x5[d], s5)
        s6 = fma(x6[d], x6[d], s6)
        s7 = fma(x7[d], x7[d], s7)
    sums[0], sums[1], sums[2], sums[3] = s0, s1, s2, s3
    sums[4], sums[5], sums[6], sums[7] = s4, s5, s6, s7


@kernel
def rms_norm_kernel(
    x: Float32, gain: Float32, eps: np.float32, out: Float32, bf16: bool, low: int, high: int
) -> None:
    """RMSNorm of rows ``low .. high``; ``x`` and ``out`` are [T, D]."""
    width = np.float32(x.shape[1])
    sums = np.empty(LANES, np.float32)
    for row in range(low, high, LANES):
        count = min(LANES, high - row)
        square_sums(x, row, count, sums)
        for r in range(count):
            scale = rsqrt(sums[r] / width + eps)
            source, target = x[row + r], out[row + r]
            for d in range(x.shape[1]):
                y = source[d] * scale * gain[d]
                target[d] = to_bf16(y) if bf16 else y


def rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float, bf16: bool, workers: Workers) -> torch.Tensor:
    """``x * rsqrt(mean(x**2) + eps) * gain``: float32 [T, D] -> float32 [T, D] (model.md section 0.3)."""
    rows, weights = x.contiguous().numpy(), gain.contiguous().numpy()
    out = np.empty_like(rows)
    workers.run(
        rows.shape[0],
        LANES,
        lambda low, high: rms_norm_kernel(rows, weights, np.float32(eps), out, bf16, low, high),
    )
    return torch.from_numpy(out)
