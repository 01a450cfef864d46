"""Linear layers of profile fast: bfloat16 products on tensor cores, float32 sums in an order fixed by the
shape.

Activations of profile fast hold bfloat16 values, so that nothing is lost by handing them over as bfloat16. A
weight that bfloat16 holds exactly is one part; any other float32 weight is three, whose sum it is to 24
bits, and so are its products. One that FP8 blocks hold exactly stays in that form where a kernel reads it,
and gives the bits of the one part that it would be.

Legend: T rows, K inputs, N outputs, G groups, P = 1 or 3 parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deepinfer.kernels.gpu.capability import has_wgmma
from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.fp8_linear import MOST, keep_fp8, multiply_fp8
from deepinfer.kernels.gpu.fp8_weights import Fp8Weights, widen
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.gemm_tiles import multiply, multiply_groups, rounds_rows
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch

import triton.language as tl  # isort: skip

_TILE = 1024


@dataclass(frozen=True)
class FastLinear:
    """``parts`` bfloat16 [G, P * N, K'], K filled up with zeros to a multiple of 8."""

    parts: torch.Tensor
    num_parts: int
    num_inputs: int

    @property
    def num_groups(self) -> int:
        """G."""
        return self.parts.shape[0]

    @property
    def num_outputs(self) -> int:
        """N of one group."""
        return self.parts.shape[1] // self.num_parts


AnyLinear = FastLinear | Fp8Weights


def pack_linear(weight: torch.Tensor, place: torch.device) -> AnyLinear:
    """Keep ``weight`` float32 [N, K], or [G, N, K] for a grouped linear, as codes, or cut it into parts."""
    eight = keep_fp8(weight, place)
    return pack_parts(weight, place) if eight is None else eight


def pack_parts(weight: torch.Tensor, place: torch.device) -> FastLinear:
    """Cut ``weight`` into bfloat16 parts."""
    left = weight.detach().to(place, torch.float32)
    left = left if left.ndim == 3 else left[None]
    num_inputs = left.shape[2]
    left = torch.nn.functional.pad(left, (0, -num_inputs % 8))
    parts = []
    for _ in range(3):
        parts.append(left.to(torch.bfloat16))
        left = left - parts[-1].to(torch.float32)
    if not bool(left.any() | parts[1].any()):
        parts = parts[:1]
    return FastLinear(torch.cat(parts, 1).contiguous(), len(parts), num_inputs)


@kernel
def _sum_kernel(
    parts: Ptr,
    out: Ptr,
    num_outputs: int,
    stride: int,
    BLOCK: tl.constexpr,
    BF16: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    """``(p_0 + p_1) + p_2`` of a row."""
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = parts + row * 3 * num_outputs + n
    total = tl.load(source, n < num_outputs, other=0.0) + tl.load(
        source + num_outputs, n < num_outputs, other=0.0
    )
    total = total + tl.load(source + 2 * num_outputs, n < num_outputs, other=0.0)
    tl.store(out + row * stride + n, rounded(total, BF16), n < num_outputs)


def _aligned(rows: torch.Tensor) -> torch.Tensor:
    """Filled up with zeros to a multiple of 8 inputs, where the tensor units can read them."""
    depth = rows.shape[1]
    if depth % 8 or rows.data_ptr() % 16 or rows.stride(0) % 8 or rows.stride(1) != 1:
        rows = torch.nn.functional.pad(rows, (0, -depth % 8)).contiguous()
    return rows


def part_products(x: torch.Tensor, weight: FastLinear, workspace: Workspace) -> torch.Tensor:
    """``x`` float32 [T, K] times each part of a weight of one group: float32 [T, P * N], to be summed."""
    _, outputs, inputs = weight.parts.shape
    given = x if rounds_rows(len(x), outputs, inputs, x.device) else x.to(torch.bfloat16)
    parts = torch.empty(len(x), outputs, dtype=torch.float32, device=x.device)
    return multiply(_aligned(given), weight.parts[0], parts, workspace) if len(x) else parts


def linear(x: torch.Tensor, weight: AnyLinear, workspace: Workspace, bf16: bool) -> torch.Tensor:
    """``x`` float32 [T, G * K] of bfloat16 values -> float32 [T, G * N], rounded to bfloat16 if ``bf16``.

    Raises:
        ValueError: ``x`` has another width than the weight.
    """
    groups, depth, outputs = weight.num_groups, weight.num_inputs, weight.num_outputs
    if x.ndim != 2 or x.shape[1] != groups * depth:
        raise ValueError(f"linear: x is {list(x.shape)}, the weight takes [T, {groups * depth}]")
    out = torch.empty(len(x), groups * outputs, dtype=torch.float32, device=x.device)
    if len(x) == 0:
        return out
    if isinstance(weight, Fp8Weights) and len(x) <= MOST and has_wgmma(x.device):
        return multiply_fp8(_aligned(x.to(torch.bfloat16)), weight, out, workspace, bf16)
    if isinstance(weight, Fp8Weights):
        room = torch.empty(groups, outputs, depth, dtype=torch.bfloat16, device=x.device)
        weight = FastLinear(widen(weight, room), 1, depth)
    given = x if rounds_rows(len(x), outputs, depth, x.device) else x.to(torch.bfloat16)
    if groups > 1 and weight.num_parts == 1 and depth == weight.parts.shape[2]:
        found = multiply_groups(_aligned(given), weight.parts, out, workspace, bf16)
        if found is not None:
            return found
    for group in range(groups):
        rows = _aligned(given[:, group * depth : (group + 1) * depth])
        own = out[:, group * outputs : (group + 1) * outputs]
        if weight.num_parts == 1:
            multiply(rows, weight.parts[group], own, workspace, bf16)
            continue
        parts = torch.empty(len(x), 3 * outputs, dtype=torch.float32, device=x.device)
        multiply(rows, weight.parts[group], parts, workspace)
        grid = (len(x), ceil_div(outputs, _TILE))
        launch(_sum_kernel, grid, parts, own, outputs, out.stride(0), BLOCK=_TILE, BF16=bf16)
    return out
