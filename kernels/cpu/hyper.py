"""Manifold-constrained hyper-connections (model.md section 2.2): mixes, Sinkhorn, collapse and expand.

Legend: T rows, S = 4 residual streams, D model width. Sinkhorn runs on eight rows side by side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deepinfer.kernels.cpu.compiled import inlined, kernel
from deepinfer.kernels.cpu.elementary import exp, fma, rsqrt, sigmoid, to_bf16
from deepinfer.kernels.cpu.linear import PackedLinear, linear
from deepinfer.kernels.cpu.norms import square_sums
from deepinfer.kernels.cpu.sinkhorn import LANES, balance, refuse_other_streams
from deepinfer.kernels.cpu.workers import Workers

Float32 = npt.NDArray[np.float32]
_ZERO, _TWO, _INFINITY = np.float32(0.0), np.float32(2.0), np.float32(np.inf)


@inlined
def _softmax_row(p: Float32, streams: int, eps: np.float32, largest: Float32, total: Float32) -> None:
    """Softmax over the ``streams`` rows of ``p``, lane by lane, plus ``eps``."""
    largest[:] = -_INFINITY
    for b in range(streams):
        part = p[b]
        for lane in range(LANES):
            largest[lane] = max(largest[lane], part[lane])
    total[:] = _ZERO
    for b in range(streams):
        part = p[b]
        for lane in range(LANES):
            part[lane] = exp(part[lane] - largest[lane])
            total[lane] = total[lane] + part[lane]
    for b in range(streams):
        part = p[b]
        for lane in range(LANES):
            part[lane] = part[lane] / total[lane] + eps


@inlined
def _sinkhorn_lanes(p: Float32, streams: int, iterations: int, eps: np.float32, scratch: Float32) -> None:
    """``p`` [S * S, LANES], logits in, doubly normalised matrices out; columns are normalised last."""
    for a in range(streams):
        _softmax_row(p[a * streams : (a + 1) * streams], streams, eps, scratch[1], scratch[0])
    balance(np.int64(p.ctypes.data), iterations, eps)


@kernel
def _sinkhorn_kernel(
    logits: Float32, out: Float32, iterations: int, eps: np.float32, low: int, high: int
) -> None:
    streams = logits.shape[1]
    p = np.zeros((streams * streams, LANES), np.float32)
    scratch = np.empty((2, LANES), np.float32)
    for row in range(low, high, LANES):
        count = min(LANES, high - row)
        for i in range(streams * streams):
            for lane in range(count):
                p[i, lane] = logits[row + lane, i // streams, i % streams]
        _sinkhorn_lanes(p, streams, iterations, eps, scratch)
        for i in range(streams * streams):
            for lane in range(count):
                out[row + lane, i // streams, i % streams] = p[i, lane]


def sinkhorn(logits: torch.Tensor, iterations: int, eps: float, workers: Workers) -> torch.Tensor:
    """float32 [T, S, S] (input stream, output stream) -> doubly normalised [T, S, S]."""
    refuse_other_streams(logits.shape[1])
    source = logits.contiguous().numpy()
    out = np.empty_like(source)
    workers.run(
        source.shape[0],
        LANES,
        lambda low, high: _sinkhorn_kernel(source, out, iterations, np.float32(eps), low, high),
    )
    return torch.from_numpy(out)


@kernel
def mix_kernel(
    streams: Float32,
    products: Float32,
    base: Float32,
    scale: Float32,
    iterations: int,
    hc_eps: np.float32,
    rms_eps: np.float32,
    pre: Float32,
    post: Float32,
    comb: Float32,
    low: int,
    high: int,
) -> None:
    """Coefficients of rows ``low .. high`` from ``streams`` [T, S * D] and ``products`` [T, S * S + 2 S]."""
    num_streams = pre.shape[1]
    width = np.float32(streams.shape[1])
    sums = np.empty(LANES, np.float32)
    m = np.zeros((products.shape[1], LANES), np.float32)
    p = np.zeros((num_streams * num_streams, LANES), np.float32)
    scratch = np.empty((2, LANES), np.float32)
    for row in range(low, high, LANES):
        count = min(LANES, high - row)
        square_sums(streams, row, count, sums)
        for lane in range(count):
            factor = rsqrt(sums[lane] / width + rms_eps)
            for i in range(products.shape[1]):
                m[i, lane] = products[row + lane, i] * factor
        for n in range(num_streams):
            for lane in range(count):
                pre[row + lane, n] = sigmoid(fma(m[n, lane], scale[0], base[n])) + hc_eps
                post[row + lane, n] = _TWO * sigmoid(
                    fma(m[num_streams + n, lane], scale[1], base[num_streams + n])
                )
        for i in range(num_streams * num_streams):
            for lane in range(LANES):
                p[i, lane] = fma(m[2 * num_streams + i, lane], scale[2], base[2 * num_streams + i])
        _sinkhorn_lanes(p, num_streams, iterations, hc_eps, scratch)
        for i in range(num_streams * num_streams):
            for lane in range(count):
                comb[row + lane, i // num_streams, i % num_streams] = p[i, lane]


def hc_mix(
    streams: torch.Tensor,
    fn: PackedLinear,
    base: torch.Tensor,
    scale: torch.Tensor,
    iterations: int,
    hc_eps: float,
    rms_eps: float,
    workers: Workers,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coefficients of one site from its streams float32 [T, S, D].

    Returns:
        ``pre`` [T, S], ``post`` [T, S] and ``comb`` [T, S, S] (input stream, output stream), all float32.
    """
    num_rows, num_streams, _ = streams.shape
    refuse_other_streams(num_streams)
    flat = streams.reshape(num_rows, -1)
    products = linear(flat, fn, False, workers).numpy()
    rows = flat.contiguous().numpy()
    pre = np.empty((num_rows, num_streams), np.float32)
    post = np.empty_like(pre)
    comb = np.empty((num_rows, num_streams, num_streams), np.float32)
    offsets, factors = base.numpy(), scale.numpy()
    workers.run(
        num_rows,
        LANES,
        lambda low, high: mix_kernel(
            rows,
            products,
            offsets,
            factors,
            iterations,
            np.float32(hc_eps),
            np.float32(rms_eps),
            pre,
            post,
            comb,
            low,
            high,
        ),
        item_cost=40_000,
    )
    return torch.from_numpy(pre), torch.from_numpy(post), torch.from_numpy(comb)


@kernel
def collapse_kernel(streams: Float32, pre: Float32, out: Float32, bf16: bool, low: int, high: int) -> None:
    """Weighted sums of the streams [T, S, D] of rows ``low .. high``."""
    for row in range(low, high):
        target = out[row]
        target[:] = _ZERO
        for n in range(pre.shape[1]):
            factor, source = pre[row, n], streams[row, n]
            for d in range(target.shape[0]):
                target[d] = fma(factor, source[d], target[d])
        if bf16:
            for d in range(target.shape[0]):
                target[d] = to_bf16(target[d])


def hc_collapse(streams: torch.Tensor, pre: torch.Tensor, bf16: bool, workers: Workers) -> torch.Tensor:
    """``y[t] = sum over n, ascending, of pre[t, n] * streams[t, n]``: [T, S, D], [T, S] -> [T, D]."""
    source, factors = streams.contiguous().numpy(), pre.contiguous().numpy()
    out = np.empty((source.shape[0], source.shape[2]), np.float32)
    workers.run(source.shape[0], 1, lambda low, high: collapse_kernel(source, factors, out, bf16, low, high))
    return torch.from_numpy(out)


@kernel
def expand_kernel(
    streams: Float32,
    out: Float32,
    post: Float32,
    comb: Float32,
    result: Float32,
    bf16: bool,
    low: int,
    high: int,
) -> None:
    """Streams [T, S, D] of rows ``low .. high`` behind a sublayer, into ``result``; see ``hc_expand``."""
    for row in range(low, high):
        added = out[row]
        for b in range(post.shape[1]):
            target, weight = result[row, b], post[row, b]
            for d in range(target.shape[0]):
                target[d] = weight * added[d]
            for a in range(post.shape[1]):
                factor, source = comb[row, a, b], streams[row, a]
                for d in range(target.shape[0]):
                    target[d] = fma(factor, source[d], target[d])
            if bf16:
                for d in range(target.shape[0]):
                    target[d] = to_bf16(target[d])


def hc_expand(
    streams: torch.Tensor,
    out: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bf16: bool,
    workers: Workers,
) -> torch.Tensor:
    """``X'[t, b] = post[t, b] * out[t] + sum over a, ascending, of comb[t, a, b] * X[t, a]``.

    -> [T, S, D].
    """
    source, added = streams.contiguous().numpy(), out.contiguous().numpy()
    posts, combs = post.contiguous().numpy(), comb.contiguous().numpy()
    result = np.empty_like(source)
    workers.run(
        source.shape[0],
        1,
        lambda low, high: expand_kernel(source, added, posts, combs, result, bf16, low, high),
    )
    return torch.from_numpy(result)
