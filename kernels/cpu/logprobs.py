"""Log-softmax over the vocabulary and the log-probability of given tokens.

The sum of exponentials is cut into blocks of 128 ids: a chain inside each block, then a chain over the
blocks, both ascending. The cut depends on the vocabulary alone. A GPU can run the blocks side by side in the
same order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import exp, log
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
BLOCK = 128
_ZERO = np.float32(0.0)


@inlined
def _eight_chains(values: Float32, sums: Float32) -> None:
    """Sums of eight blocks, each its own chain, side by side to hide the latency of an addition."""
    s0, s1, s2, s3, s4, s5, s6, s7 = _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO
    for i in range(BLOCK):
        s0 = s0 + values[i]
        s1 = s1 + values[BLOCK + i]
        s2 = s2 + values[2 * BLOCK + i]
        s3 = s3 + values[3 * BLOCK + i]
        s4 = s4 + values[4 * BLOCK + i]
        s5 = s5 + values[5 * BLOCK + i]
        s6 = s6 + values[6 * BLOCK + i]
        s7 = s7 + values[7 * BLOCK + i]
    sums[0], sums[1], sums[2], sums[3] = s0, s1, s2, s3
    sums[4], sums[5], sums[6], sums[7] = s4, s5, s6, s7


@inlined
def largest_of(logits: Float32) -> np.float32:
    """Largest value of one row [V]."""
    vocabulary = logits.shape[0]
    lanes = np.full(16, np.float32(-np.inf), np.float32)
    whole = vocabulary // 16 * 16
    for v in range(0, whole, 16):
        part = logits[v : v + 16]
        for lane in range(16):
            lanes[lane] = max(lanes[lane], part[lane])
    largest: np.float32 = lanes[0]
    for lane in range(1, 16):
        largest = max(largest, lanes[lane])
    for v in range(whole, vocabulary):
        largest = max(largest, logits[v])
    return largest


@inlined
def first_largest(logits: Float32) -> int:
    """``argmax`` of one row [V], by vectors: the first of the largest values, of NaN if there is any."""
    largest, num_odd = largest_of(logits), 0
    for v in range(logits.shape[0]):
        num_odd += logits[v] != logits[v]
    if num_odd == 0:
        for v in range(logits.shape[0]):
            if logits[v] == largest:
                return v
    return int(logits.argmax())


@inlined
def block_sum(values: Float32, sums: Float32) -> np.float32:
    """Sum of values [B * BLOCK]: a chain inside each block, then over the blocks; ``sums`` is scratch [B]."""
    num_blocks = values.shape[0] // BLOCK
    for block in range(num_blocks):
        sums[block] = _ZERO
    for first in range(0, num_blocks - 7, 8):
        _eight_chains(values[first * BLOCK : (first + 8) * BLOCK], sums[first : first + 8])
    for block in range(num_blocks // 8 * 8, num_blocks):
        part = values[block * BLOCK : (block + 1) * BLOCK]
        for i in range(BLOCK):
            sums[block] = sums[block] + part[i]
    total = _ZERO
    for block in range(num_blocks):
        total = total + sums[block]
    return total


@inlined
def _log_normaliser(logits: Float32, scratch: Float32, sums: Float32) -> tuple[np.float32, np.float32]:
    """Largest logit M and ``log(sum exp(logit - M))`` of one row [V]."""
    largest = largest_of(logits)
    for v in range(logits.shape[0]):
        scratch[v] = exp(logits[v] - largest)
    return largest, log(block_sum(scratch, sums))


@kernel
def _gather_kernel(
    logits: Float32, targets: Int64, logprobs: Float32, ranks: npt.NDArray[np.int32], low: int, high: int
) -> None:
    vocabulary = logits.shape[1]
    num_blocks = -(-vocabulary // BLOCK)
    scratch = np.zeros(num_blocks * BLOCK, np.float32)
    sums = np.empty(num_blocks, np.float32)
    for row in range(low, high):
        line = logits[row]
        largest, log_total = _log_normaliser(line, scratch, sums)
        target = targets[row]
        value = line[target]
        logprobs[row] = (value - largest) - log_total
        rank = 0
        for v in range(vocabulary):
            rank += line[v] > value
        for v in range(target):
            rank += line[v] == value
        ranks[row] = rank


@kernel
def _log_softmax_kernel(logits: Float32, out: Float32, low: int, high: int) -> None:
    vocabulary = logits.shape[1]
    num_blocks = -(-vocabulary // BLOCK)
    scratch = np.zeros(num_blocks * BLOCK, np.float32)
    sums = np.empty(num_blocks, np.float32)
    for row in range(low, high):
        line, target = logits[row], out[row]
        largest, log_total = _log_normaliser(line, scratch, sums)
        for v in range(vocabulary):
            target[v] = (line[v] - largest) - log_total


def token_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, workers: Workers
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and rank of one token per row.

    Args:
        logits: float32 [T, V].
        targets: int64 [T], inside the vocabulary.

    Returns:
        log-probabilities float32 [T] in nats; ranks int32 [T]: number of tokens more likely, of equal ones
        those with a lower id.
    """
    source, wanted = logits.contiguous().numpy(), targets.contiguous().numpy()
    logprobs = np.empty(source.shape[0], np.float32)
    ranks = np.empty(source.shape[0], np.int32)
    workers.run(
        source.shape[0],
        1,
        lambda low, high: _gather_kernel(source, wanted, logprobs, ranks, low, high),
        item_cost=40 * source.shape[1],
    )
    return torch.from_numpy(logprobs), torch.from_numpy(ranks)


def log_softmax(logits: torch.Tensor, workers: Workers) -> torch.Tensor:
    """All log-probabilities: float32 [T, V] -> float32 [T, V], the same bits ``token_logprobs`` gathers."""
    source = logits.contiguous().numpy()
    out = np.empty_like(source)
    workers.run(
        source.shape[0],
        1,
        lambda low, high: _log_softmax_kernel(source, out, low, high),
        item_cost=40 * source.shape[1],
    )
    return torch.from_numpy(out)
