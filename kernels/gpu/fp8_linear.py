"""Linear layers of profile fast that keep their weights as the checkpoint has them: FP8 in 32 x 32 blocks.

One copy of the weights, half as large as in bfloat16. Up to a few hundred rows read it as it is
(``hopper_fp8.py``); for more, where the matrix unit is the bound, it is widened into scratch memory first.
Both give the bits of the same weights in bfloat16, so what a checkpoint stores moves no bit.

Legend: M rows, N outputs, K inputs, G groups.
"""

from __future__ import annotations

import torch

from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.fp8_weights import SIDE, Fp8Weights, exact_fp8, pack_fp8
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.gemm_tiles import plan
from deepinfer.kernels.gpu.hopper_fp8 import Fp8Tile, products

MOST = 512
"""Rows that read the codes themselves."""
_LEAST = 1 << 22
"""Weights of a layer for which half the bytes are worth a kernel of their own."""
_WIDE = 16384
"""Outputs for which tiles can be large and still be enough."""
_STEP = 256


def keep_fp8(weight: torch.Tensor, place: torch.device) -> Fp8Weights | None:
    """``weight`` float32 [N, K] or [G, N, K] as codes; None where they would not be exact or not be used."""
    groups = weight.shape[0] if weight.ndim == 3 else 1
    outputs, inputs = weight.shape[-2:]
    if not has_wgmma(place) or weight.numel() < _LEAST:
        return None
    chunk = plan(outputs, inputs).chunk
    if outputs % (4 * SIDE) or inputs % chunk or chunk % _STEP:
        return None
    flat = weight.detach().to(place, torch.float32).reshape(-1, inputs)
    if exact_fp8(flat[:SIDE]) is None:
        return None
    found = exact_fp8(flat)
    return None if found is None else pack_fp8(*found, groups)


def tile_of(groups: int, outputs: int, inputs: int, num_rows: int) -> Fp8Tile:
    """The launch shape for up to ``MOST`` rows; moves no bit. From measurements in ``benchmarks/results``."""
    total = groups * outputs
    spread = groups == 1 and plan(outputs, inputs).chunk < inputs
    if num_rows <= 16 and total < _WIDE:
        return Fp8Tile(4, 1, 8 if num_rows <= 8 else 16, 4, 6, 64, spread)
    if num_rows <= 16:
        return Fp8Tile(8, 2, 16, 2, 5, 64, spread)
    if num_rows <= 64 and total < _WIDE:
        return Fp8Tile(4, 1, 64, 2, 4, 64, spread) if total < 4096 else Fp8Tile(4, 2, 64, 2, 3, 64, spread)
    if num_rows <= 64:
        return Fp8Tile(8, 2, 64, 2, 3, 64, spread)
    if num_rows <= 256 and total < _WIDE:
        return Fp8Tile(4, 2, 128, 2, 3, 96, spread)
    return Fp8Tile(8, 2, 128, 2, 3, 96, spread)


def multiply_fp8(
    x: torch.Tensor, w: Fp8Weights, out: torch.Tensor, workspace: Workspace, bf16: bool = False
) -> torch.Tensor:
    """``x`` bfloat16 [M, G * K], at most ``MOST`` rows, times ``w`` into ``out`` [M, G * N]."""
    outputs, inputs = w.num_outputs, w.num_inputs
    tile = tile_of(w.num_groups, outputs, inputs, len(x))
    return products(x, w, out, plan(outputs, inputs).chunk, tile, workspace, bf16)
