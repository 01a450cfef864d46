"""Engram gate: a normalised dot product per stream opens the way for one shared value.

model.md section 6.4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.elementary import fma, rsqrt, sigmoid, to_bf16
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
_ZERO, _GATE_FLOOR = np.float32(0.0), np.float32(1e-6)


@kernel
def _gate_kernel(
    streams: Float32,
    kv: Float32,
    gains: Float32,
    eps: np.float32,
    factor: np.float32,
    out: Float32,
    bf16: bool,
    low: int,
    high: int,
) -> None:
    num_streams, width = streams.shape[1], streams.shape[2]
    count = np.float32(width)
    for row in range(low, high):
        for n in range(num_streams):
            squares_x, squares_k, dot = _ZERO, _ZERO, _ZERO
            source, keys, gain = streams[row, n], kv[row, n * width : (n + 1) * width], gains[n]
            for d in range(width):
                x, key = source[d], keys[d]
                squares_x = fma(x, x, squares_x)
                squares_k = fma(key, key, squares_k)
                dot = fma(x * gain[d], key, dot)
            score = dot * rsqrt(squares_x / count + eps) * rsqrt(squares_k / count + eps) * factor
            gate = sigmoid(np.copysign(np.sqrt(max(abs(score), _GATE_FLOOR)), score))
            values, target = kv[row, num_streams * width :], out[row, n]
            for d in range(width):
                y = fma(gate, values[d], source[d])
                target[d] = to_bf16(y) if bf16 else y


def engram_gate(
    streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float, bf16: bool, workers: Workers
) -> torch.Tensor:
    """Add the gated n-gram value to every stream.

    Args:
        streams: float32 [T, S, D].
        kv: float32 [T, (S + 1) * D]: a key for each stream, then the value.
        gains: float32 [S, D], ``q_weight * k_weight``.
    """
    source, projected, products = (
        streams.contiguous().numpy(),
        kv.contiguous().numpy(),
        gains.contiguous().numpy(),
    )
    out = np.empty_like(source)
    factor = np.float32(1.0) / np.sqrt(np.float32(source.shape[2]))
    workers.run(
        source.shape[0],
        1,
        lambda low, high: _gate_kernel(
            source, projected, products, np.float32(eps), factor, out, bf16, low, high
        ),
    )
    return torch.from_numpy(out)
