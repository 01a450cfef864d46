"""Small element-wise ops: stream mean, scaling, sigmoid."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.elementary import sigmoid as scalar_sigmoid
from deepinfer.kernels.cpu.elementary import to_bf16
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]


@kernel
def _mean_kernel(streams: Float32, factor: np.float32, out: Float32, bf16: bool, low: int, high: int) -> None:
    for row in range(low, high):
        for d in range(out.shape[1]):
            total = np.float32(0.0)
            for n in range(streams.shape[1]):
                total = total + streams[row, n, d]
            total = total * factor
            out[row, d] = to_bf16(total) if bf16 else total


def mean_streams(streams: torch.Tensor, bf16: bool, workers: Workers) -> torch.Tensor:
    """float32 [T, S, D] -> [T, D]: sum over ascending streams, times 1/S."""
    source = streams.contiguous().numpy()
    out = np.empty((source.shape[0], source.shape[2]), np.float32)
    factor = np.float32(1.0) / np.float32(source.shape[1])
    workers.run(source.shape[0], 1, lambda low, high: _mean_kernel(source, factor, out, bf16, low, high))
    return torch.from_numpy(out)


@kernel
def _scale_kernel(x: Float32, factor: np.float32, out: Float32, bf16: bool, low: int, high: int) -> None:
    for i in range(low, high):
        y = x[i] * factor
        out[i] = to_bf16(y) if bf16 else y


def scale(x: torch.Tensor, factor: float, bf16: bool, workers: Workers) -> torch.Tensor:
    """``x * float32(factor)``, any shape."""
    source = x.contiguous().numpy().reshape(-1)
    out = np.empty_like(source)
    workers.run(
        len(source), 4096, lambda low, high: _scale_kernel(source, np.float32(factor), out, bf16, low, high)
    )
    return torch.from_numpy(out).view(x.shape)


@kernel
def sigmoid_kernel(x: Float32, out: Float32, low: int, high: int) -> None:
    """``1 / (1 + exp(-x))`` of values ``low .. high``."""
    for i in range(low, high):
        out[i] = scalar_sigmoid(x[i])


def sigmoid(x: torch.Tensor, workers: Workers) -> torch.Tensor:
    """``1 / (1 + exp(-x))``, any shape."""
    source = x.contiguous().numpy().reshape(-1)
    out = np.empty_like(source)
    workers.run(len(source), 4096, lambda low, high: sigmoid_kernel(source, out, low, high))
    return torch.from_numpy(out).view(x.shape)
