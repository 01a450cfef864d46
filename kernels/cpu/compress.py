"""Ratio-2 compressor pooling: a softmax over the two tokens of a group, channel by channel.

model.md section 3.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.elementary import exp, fma, to_bf16
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]


@kernel
def _pool_pairs_kernel(
    values: Float32, scores: Float32, out: Float32, bf16: bool, low: int, high: int
) -> None:
    for j in range(low, high):
        for d in range(out.shape[1]):
            s0, s1 = scores[j, 0, d], scores[j, 1, d]
            largest = max(s0, s1)
            e0, e1 = exp(s0 - largest), exp(s1 - largest)
            total = e0 + e1
            u = fma(e1 / total, values[j, 1, d], (e0 / total) * values[j, 0, d])
            out[j, d] = to_bf16(u) if bf16 else u


def pool_pairs(values: torch.Tensor, scores: torch.Tensor, bf16: bool, workers: Workers) -> torch.Tensor:
    """``u[j] = sum over i of softmax_i(scores[j, i]) * values[j, i]``: two float32 [J, 2, C] -> [J, C]."""
    source, weights = values.contiguous().numpy(), scores.contiguous().numpy()
    out = np.empty((source.shape[0], source.shape[2]), np.float32)
    workers.run(
        source.shape[0], 1, lambda low, high: _pool_pairs_kernel(source, weights, out, bf16, low, high)
    )
    return torch.from_numpy(out)
