"""Rotary embedding on adjacent pairs of the last channels, in the fma form of model.md section 3.4."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.elementary import fma, to_bf16
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]


@kernel
def rotate_kernel(
    x: Float32,
    cos: Float32,
    sin: Float32,
    positions: npt.NDArray[np.int64],
    sign: np.float32,
    bf16: bool,
    low: int,
    high: int,
) -> None:
    """Rotate rows ``low .. high`` of ``x`` [T, heads, width] in place; ``sign`` -1 turns back."""
    num_pairs = cos.shape[1]
    start = x.shape[2] - 2 * num_pairs
    for row in range(low, high):
        cosines, sines = cos[positions[row]], sin[positions[row]]
        for head in range(x.shape[1]):
            tail = x[row, head, start:]
            for i in range(num_pairs):
                c, s = cosines[i], sines[i] * sign
                x0, x1 = tail[2 * i], tail[2 * i + 1]
                y0 = fma(x0, c, -(x1 * s))
                y1 = fma(x0, s, x1 * c)
                tail[2 * i] = to_bf16(y0) if bf16 else y0
                tail[2 * i + 1] = to_bf16(y1) if bf16 else y1


def rotate_(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    inverse: bool,
    bf16: bool,
    workers: Workers,
) -> torch.Tensor:
    """Rotate the last ``2 * cos.shape[1]`` channels of ``x`` in place and return it.

    Args:
        x: float32 [T, heads, width], contiguous.
        cos: float32 [max_position, pairs].
        sin: float32 [max_position, pairs].
        positions: int64 [T], row of the tables for each row of ``x``.
        inverse: rotate by the negative angle.
    """
    rows = x.numpy()
    if not rows.flags.c_contiguous:
        raise ValueError("rotate_: x must be contiguous, it is changed in place")
    sign = np.float32(-1.0 if inverse else 1.0)
    table_cos, table_sin, index = cos.numpy(), sin.numpy(), positions.numpy()
    workers.run(
        rows.shape[0],
        1,
        lambda low, high: rotate_kernel(rows, table_cos, table_sin, index, sign, bf16, low, high),
    )
    return x
