"""Index queries in eight bits for the scans of Hopper chips, and what each head's score is multiplied by.

Queries are MXFP4 numbers: e5m2 holds those of a head times the power of two that brings the largest near
2**13, and that power goes into the head's weight.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from deepinfer.kernels.gpu.hopper_keys import CHANNELS, HEADS, SCORES
from deepinfer.kernels.gpu.launching import Block
from deepinfer.kernels.gpu.warp_groups import warp_device

QUERIES: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0]],
        [],
        [32, 128],
    )
)
_PART: gl.constexpr = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 16]],
        [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0]],
        [],
        [32, 32],
    )
)
"""A group of channels of ``QUERIES``, even ones first: four in a row."""


@warp_device
def load_row(q: Block, w: Block, row: Block) -> tuple[Block, Block]:
    """Queries [32, 128] and weights [32] of ``row``; ask early, they are needed late."""
    h = gl.arange(0, 32, layout=gl.SliceLayout(1, QUERIES))
    c = gl.arange(0, 128, layout=gl.SliceLayout(0, QUERIES))
    own_q = gl.load(q + (row * HEADS + h)[:, None] * CHANNELS + c[None, :])
    head = gl.arange(0, 32, layout=gl.SliceLayout(0, SCORES))
    return own_q, gl.load(w + row * HEADS + head)


@warp_device
def store_queries(own_q: Block, queries: Block, downs: Block) -> None:
    """Queries to shared ``queries`` e5m2 [4, 32, 32], by group of channels; ``downs`` float32 [32] are the
    powers of two that undo what was done to the heads, and to the keys' codes.
    """
    own_q = own_q.to(gl.float32)
    largest = gl.max(gl.abs(own_q), axis=1)
    exponent = (largest.to(gl.int32, bitcast=True) >> 23) & 255
    exponent = gl.where(exponent == 0, 127, gl.minimum(gl.maximum(exponent, 14), 230))
    up = ((127 + 127 + 12 - exponent) << 23).to(gl.float32, bitcast=True)
    # even channels, odd channels: as numbers, since bytes would have to be taken apart for that
    by_group = (own_q * up[:, None]).reshape([32, 4, 16, 2]).permute([0, 3, 2, 1]).reshape([32, 32, 2, 2])
    evens, odds = gl.split(by_group)
    g0, g2 = gl.split(evens)
    g1, g3 = gl.split(odds)
    queries.index(0).store(gl.convert_layout(g0, _PART).to(gl.float8e5))
    queries.index(1).store(gl.convert_layout(g1, _PART).to(gl.float8e5))
    queries.index(2).store(gl.convert_layout(g2, _PART).to(gl.float8e5))
    queries.index(3).store(gl.convert_layout(g3, _PART).to(gl.float8e5))
    down = ((exponent - 12 + 6) << 23).to(gl.float32, bitcast=True)
    downs.store(down)
    fence_async_shared()
    gl.thread_barrier()


@warp_device
def weights_of_heads(own_w: Block, downs: Block) -> Block:
    """Weights of the heads times ``downs``, bfloat16 [64, 32], for entries in rows."""
    weight = own_w.to(gl.float32) * downs.load(gl.SliceLayout(0, SCORES))
    return weight.to(gl.bfloat16)[None, :].broadcast_to([64, 32])
