"""Routed experts on MXFP4 weights for chips that multiply FP4 and FP8 as they are. Not run on hardware.

The products of ``expert_gemm`` without decoding: the weight is the left operand of a scaled product, and a
row comes as two MXFP8 rows (``native_weights``), which stand side by side in a tile and are added at the end.
Steps of 128 channels ascend, whatever K is: as far as this code decides it, the order of a sum depends on K
alone. That the chip sums a column of a tile in one order wherever it stands in the tile was not seen, so one
tile serves any number of rows, and rows have to be compared in other company before bits are promised there.

Legend: T rows, P pairs of row and expert, D model width, I inner width, K' channels filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.expert_gemm import ExpertTile
from deepinfer.kernels.gpu.expert_groups import Tiles, plan_tiles
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch
from deepinfer.kernels.gpu.native_weights import STEP, NativeWeights, SplitRows, split_inner, split_rows

TILE = ExpertTile(128, 16, STEP, 3, 4)
"""The only launch shape."""
_FP4: tl.constexpr = tl.constexpr("e2m1")
_FP8: tl.constexpr = tl.constexpr("e4m3")


@dataclass(frozen=True)
class NativeExperts:
    """Weights of all experts of a layer: gate over up with 2 I outputs, and down with D."""

    inner: NativeWeights
    down: NativeWeights


@kernel
def _product_kernel(
    codes: Ptr,
    scales: Ptr,
    order: Ptr,
    expert_of: Ptr,
    first_of: Ptr,
    last_of: Ptr,
    weight: Ptr,
    weight_scales: Ptr,
    out: Ptr,
    num_experts: int,
    num_rows: int,
    per_row: int,
    num_outputs: int,
    DEPTH: tl.constexpr,
    BN: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """``out[pair]`` [P, N] = the row of the pair times the weight of its expert, rounded to bfloat16."""
    blocks = tl.cdiv(num_outputs, BN)
    tile, n0 = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BN
    expert = tl.load(expert_of + tile)
    if expert < num_experts:
        first, last = tl.load(first_of + tile), tl.load(last_of + tile)
        column = tl.arange(0, 2 * BM)  # of pair column // 2, part column % 2
        within = first + column // 2 < last
        rows = tl.load(order + first + column // 2, within, other=0) // per_row
        rows += column % 2 * tl.cast(num_rows, tl.int64)
        n = tl.minimum(n0 + tl.arange(0, BN), num_outputs - 1)  # those past the end repeat it, unstored
        line = tl.cast(expert, tl.int64) * num_outputs + n
        word = weight + line[:, None] * (DEPTH // 2) + tl.arange(0, BK // 2)[None, :]
        power = weight_scales + line[:, None] * (DEPTH // 32) + tl.arange(0, BK // 32)[None, :]
        source = codes + rows[None, :] * DEPTH + tl.arange(0, BK)[:, None]
        factor = scales + rows[:, None] * (DEPTH // 32) + tl.arange(0, BK // 32)[None, :]
        has_code = tl.broadcast_to(within[None, :], (BK, 2 * BM))
        has_scale = tl.broadcast_to(within[:, None], (2 * BM, BK // 32))
        acc = tl.zeros((BN, 2 * BM), tl.float32)
        for _ in range(0, DEPTH, BK):
            x, f = tl.load(source, has_code, other=0), tl.load(factor, has_scale, other=0)
            acc = tl.dot_scaled(tl.load(word), tl.load(power), _FP4, x, f, _FP8, acc)
            word += BK // 2
            power += BK // 32
            source += BK
            factor += BK // 32
        near, rest = tl.split(tl.reshape(acc, (BN, BM, 2)))
        i, n = first + tl.arange(0, BM), n0 + tl.arange(0, BN)
        places = out + tl.load(order + i, i < last, other=0)[None, :] * num_outputs + n[:, None]
        tl.store(places, (near + rest).to(tl.bfloat16), (n < num_outputs)[:, None] & (i < last)[None, :])


def products(
    rows: SplitRows, tiles: Tiles, weight: NativeWeights, per_row: int, tile: ExpertTile = TILE
) -> torch.Tensor:
    """bfloat16 [P, N]: every pair's row, ``per_row`` pairs a row, times the weight of its expert.

    ``tiles`` must be planned for ``tile.pairs``; the depth of ``tile`` divides ``native_weights.STEP``.
    """
    num_experts, num_outputs, _ = weight.codes.shape
    _, num_rows, depth = rows.codes.shape
    out = torch.empty(num_rows * per_row, num_outputs, dtype=torch.bfloat16, device=rows.codes.device)
    launch(
        _product_kernel,
        (len(tiles.expert) * ceil_div(num_outputs, tile.outputs),),
        *(rows.codes, rows.scales, tiles.order, tiles.expert, tiles.first, tiles.last),
        *(weight.codes, weight.scales, out, num_experts, num_rows, per_row, num_outputs),
        num_warps=tile.warps,
        num_stages=tile.stages,
        DEPTH=depth,
        BN=tile.outputs,
        BM=tile.pairs,
        BK=tile.depth,
    )
    return out


def routed(
    x: torch.Tensor,
    ids: torch.Tensor,
    shares: torch.Tensor,
    experts: NativeExperts,
    limit: float,
    tile: ExpertTile = TILE,
) -> torch.Tensor:
    """bfloat16 [P, D]: every pair's expert applied to its row ``x`` bfloat16 [T, D], weighted.

    Args:
        x: the rows.
        ids: int64 [T, k].
        shares: float32 [T, k].
        experts: of a layer of these widths.
        limit: of the clamp, none if it is not positive.
        tile: a launch shape.
    """
    tiles = plan_tiles(ids, len(experts.inner.codes), tile.pairs)
    inner = products(split_rows(x), tiles, experts.inner, ids.shape[1], tile)
    return products(split_inner(inner, shares, limit), tiles, experts.down, 1, tile)
