"""Engram gate, profile strict: three chains over ascending channels per stream; a lane holds a stream."""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import copy_sign, greater, rounded, rsqrt, sigmoid
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch

_LANES, _WIDTH = 32, 128


@kernel
def _gate_kernel(
    streams: Ptr,
    kv: Ptr,
    gains: Ptr,
    out: Ptr,
    eps: float,
    factor: float,
    num_items: int,
    num_streams: int,
    width: int,
    LANES: tl.constexpr,
    BD: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    items = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = items < num_items
    rows, own = items // num_streams, items % num_streams
    source, keys = items * width, (rows * (num_streams + 1) + own) * width
    squares_x, squares_k = tl.zeros((LANES,), tl.float32), tl.zeros((LANES,), tl.float32)
    dot = tl.zeros((LANES,), tl.float32)
    for d in range(0, width):
        x = tl.load(streams + source + d, inside, other=0.0)
        key = tl.load(kv + keys + d, inside, other=0.0)
        gain = tl.load(gains + own * width + d, inside, other=0.0)
        squares_x = tl.fma(x, x, squares_x)
        squares_k = tl.fma(key, key, squares_k)
        dot = tl.fma(x * gain, key, dot)
    count = tl.zeros((LANES,), tl.float32) + width
    score = dot * rsqrt(tl.div_rn(squares_x, count) + eps) * rsqrt(tl.div_rn(squares_k, count) + eps) * factor
    gate = sigmoid(copy_sign(tl.sqrt_rn(greater(tl.abs(score), 1e-6)), score))
    values = (rows * (num_streams + 1) + num_streams) * width
    for first in range(0, width, BD):
        channel = first + tl.arange(0, BD)
        within = inside[:, None] & (channel < width)[None, :]
        value = tl.load(kv + values[:, None] + channel[None, :], within, other=0.0)
        places = source[:, None] + channel[None, :]
        own_value = tl.load(streams + places, within, other=0.0)
        y = tl.fma(tl.broadcast_to(gate[:, None], (LANES, BD)), value, own_value)
        tl.store(out + places, rounded(y, BF16), within)


def engram_gate(
    streams: torch.Tensor, kv: torch.Tensor, gains: torch.Tensor, eps: float, bf16: bool
) -> torch.Tensor:
    """Add the gated n-gram value to every stream.

    Args:
        streams: float32 [T, S, D].
        kv: float32 [T, (S + 1) * D]: a key for each stream, then the value.
        gains: float32 [S, D].
    """
    source, projected, products = streams.contiguous(), kv.contiguous(), gains.contiguous()
    num_rows, num_streams, width = source.shape
    out = torch.empty_like(source)
    num_items = num_rows * num_streams
    factor = float(np.float32(1.0) / np.sqrt(np.float32(width)))
    launch(
        _gate_kernel,
        (ceil_div(num_items, _LANES),),
        *(source, projected, products, out, eps, factor, num_items, num_streams, width),
        num_warps=1,
        LANES=_LANES,
        BD=_WIDTH,
        BF16=bf16,
    )
    return out
