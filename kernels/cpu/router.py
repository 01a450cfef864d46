"""Expert router: square root of softplus, selection with a bias, weights without it.

model.md section 5.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import kernel
from deepinfer.kernels.cpu.elementary import softplus
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
_FLOOR = np.float32(1e-20)


@kernel
def route_kernel(
    logits: Float32,
    bias: Float32,
    normalise: bool,
    factor: np.float32,
    ids: Int64,
    weights: Float32,
    low: int,
    high: int,
) -> None:
    """Experts of rows ``low .. high`` from ``logits`` [T, E] into ``ids`` and ``weights`` [T, k]."""
    num_experts, top = logits.shape[1], ids.shape[1]
    scores = np.empty(num_experts, np.float32)
    taken = np.empty(num_experts, np.bool_)
    for row in range(low, high):
        for e in range(num_experts):
            scores[e] = np.sqrt(softplus(logits[row, e]))
            taken[e] = False
        for _ in range(top):
            best = -1
            for e in range(num_experts):
                if not taken[e] and (best < 0 or scores[e] + bias[e] > scores[best] + bias[best]):
                    best = e
            taken[best] = True
        total = np.float32(0.0)
        place = 0
        for e in range(num_experts):
            if taken[e]:
                ids[row, place] = e
                total = total + scores[e]
                place += 1
        total = total + _FLOOR
        for i in range(top):
            score = scores[ids[row, i]]
            weights[row, i] = (score / total if normalise else score) * factor


def route(
    logits: torch.Tensor,
    bias: torch.Tensor,
    num_selected: int,
    normalise: bool,
    factor: float,
    workers: Workers,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts for logits float32 [T, E].

    Returns:
        ids int64 [T, num_selected], ascending; weights float32 [T, num_selected]. Equal scores: the lower id
        wins.
    """
    source, offsets = logits.contiguous().numpy(), bias.contiguous().numpy()
    ids = np.empty((source.shape[0], num_selected), np.int64)
    weights = np.empty((source.shape[0], num_selected), np.float32)
    workers.run(
        source.shape[0],
        1,
        lambda low, high: route_kernel(
            source, offsets, normalise, np.float32(factor), ids, weights, low, high
        ),
    )
    return torch.from_numpy(ids), torch.from_numpy(weights)
