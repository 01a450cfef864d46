"""Cache round trips on the device: quantise to MXFP8, MXFP4 or FP4 with e4m3 scales and back, in place.

They round and never sum (model.md section 8), so these are the bytes of every other kernel set.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.block_codes import (
    fp4_scale,
    mxfp4_exponent,
    mxfp8_exponent,
    power,
    round_e2m1,
    round_e4m3,
)
from deepinfer.kernels.gpu.elementary import copy_sign
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch

MXFP8, MXFP4, FP4_E4M3 = 0, 1, 2
_GROUPS = {MXFP8: 32, MXFP4: 32, FP4_E4M3: 16}
_TILE = 16


@kernel
def _round_trip_kernel(
    x: Ptr,
    num_groups: int,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    groups = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    places = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = tl.broadcast_to((groups < num_groups)[:, None], (TILE, GROUP))
    values = tl.load(x + places, inside, other=0.0)
    amax = tl.max(tl.abs(values), axis=1)[:, None]
    if KIND == 2:
        scale = tl.broadcast_to(fp4_scale(amax), (TILE, GROUP))
        magnitude = round_e2m1(tl.abs(tl.div_rn(values, scale))) * scale
    elif KIND == 1:
        exponent = mxfp4_exponent(amax)
        magnitude = round_e2m1(tl.abs(values * power(254 - exponent))) * power(exponent)
    else:
        exponent = mxfp8_exponent(amax)
        magnitude = round_e4m3(tl.abs(values * power(254 - exponent))) * power(exponent)
    tl.store(x + places, copy_sign(magnitude, values), inside)


def round_trip_(x: torch.Tensor, kind: int) -> torch.Tensor:
    """Replace every row of ``x`` float32 [..., C] by what its cache record would give back; returns ``x``.

    Raises:
        ValueError: C is no multiple of the group, or ``x`` is not contiguous.
    """
    group = _GROUPS[kind]
    if x.shape[-1] % group or not x.is_contiguous():
        raise ValueError(f"round_trip_: width {x.shape[-1]} must be a multiple of {group} and x contiguous")
    num_groups = x.numel() // group
    grid = (ceil_div(num_groups, _TILE),)
    launch(_round_trip_kernel, grid, x, num_groups, KIND=kind, GROUP=group, TILE=_TILE)
    return x
