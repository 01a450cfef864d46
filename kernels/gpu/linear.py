"""Linear layers, profile strict: one fma chain over ascending k per output.

Two kernels with the same bits. ``_dot_kernel`` uses ``tl.dot`` on float32 with ``input_precision="ieee"``,
which compiles to one ``fma.rn.f32`` per k, in ascending order, on the accumulator it is given. The other,
``_fma_kernel``, writes the chain out; it is the witness for the first. Past the last k the operands are +0
and -0: their product -0 leaves every accumulator as it is, -0 included.

Legend: T rows, K inputs, N outputs, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import rounded
from deepinfer.kernels.gpu.launching import Ptr, ceil_div, kernel, launch


@dataclass(frozen=True)
class PackedLinear:
    """A weight turned to [G, K, N], bfloat16 where that is exact, else float32; G is 1 for a plain linear."""

    turned: torch.Tensor

    @property
    def num_groups(self) -> int:
        """G."""
        return self.turned.shape[0]

    @property
    def num_inputs(self) -> int:
        """K of one group."""
        return self.turned.shape[1]

    @property
    def num_outputs(self) -> int:
        """N of one group."""
        return self.turned.shape[2]


def smallest(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` float32 as bfloat16 if that holds every value exactly."""
    half = weight.to(torch.bfloat16)
    return half if torch.equal(half.to(torch.float32).view(torch.int32), weight.view(torch.int32)) else weight


def pack_linear(weight: torch.Tensor, place: torch.device) -> PackedLinear:
    """Turn ``weight`` float32 [N, K], or [G, N, K] for a grouped linear."""
    groups = weight.detach().to(place, torch.float32)
    groups = groups if groups.ndim == 3 else groups[None]
    return PackedLinear(smallest(groups.transpose(1, 2).contiguous()))


@kernel
def _dot_kernel(
    x: Ptr,
    w: Ptr,
    out: Ptr,
    num_rows: int,
    num_outputs: int,
    depth: int,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    group, num_groups = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    rows = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    sources = x + rows[:, None] * (num_groups * depth) + group * depth
    weights = w + group * depth * num_outputs + columns[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, depth, BK):
        k = first + tl.arange(0, BK)
        a = tl.load(sources + k[None, :], (rows[:, None] < num_rows) & (k[None, :] < depth), other=0.0)
        inside = (k[:, None] < depth) & (columns[None, :] < num_outputs)
        b = tl.load(weights + k[:, None].to(tl.int64) * num_outputs, inside, other=-0.0).to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    targets = out + rows[:, None] * (num_groups * num_outputs) + group * num_outputs + columns[None, :]
    tl.store(targets, rounded(acc, BF16), (rows[:, None] < num_rows) & (columns[None, :] < num_outputs))


@kernel
def _fma_kernel(
    x: Ptr,
    w: Ptr,
    out: Ptr,
    num_rows: int,
    num_outputs: int,
    depth: int,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    group, num_groups = tl.program_id(2).to(tl.int64), tl.num_programs(2)
    rows = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    sources = x + rows * (num_groups * depth) + group * depth
    weights = w + group * depth * num_outputs + columns
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, depth):
        a = tl.load(sources + k, rows < num_rows, other=0.0)
        b = tl.load(weights, columns < num_outputs, other=0.0).to(tl.float32)
        acc = tl.fma(tl.broadcast_to(a[:, None], (BM, BN)), tl.broadcast_to(b[None, :], (BM, BN)), acc)
        weights += num_outputs
    targets = out + rows[:, None] * (num_groups * num_outputs) + group * num_outputs + columns[None, :]
    tl.store(targets, rounded(acc, BF16), (rows[:, None] < num_rows) & (columns[None, :] < num_outputs))


def linear(x: torch.Tensor, weight: PackedLinear, bf16: bool, explicit: bool = False) -> torch.Tensor:
    """``x`` float32 [T, G * K] -> float32 [T, G * N]; ``explicit`` takes the written-out chain.

    Raises:
        ValueError: ``x`` has another width than the weight.
    """
    num_groups, depth, num_outputs = weight.turned.shape
    if x.ndim != 2 or x.shape[1] != num_groups * depth:
        raise ValueError(f"linear: x is {list(x.shape)}, the weight takes [T, {num_groups * depth}]")
    rows = x.contiguous()
    num_rows = rows.shape[0]
    out = torch.empty(num_rows, num_groups * num_outputs, dtype=torch.float32, device=rows.device)
    few = num_rows <= 16
    tile_rows, tile_columns = (16, 32) if few else (64, 64)  # no effect on bits: a chain is never cut
    grid = (ceil_div(num_rows, tile_rows), ceil_div(num_outputs, tile_columns), num_groups)
    arguments = (rows, weight.turned, out, num_rows, num_outputs, depth)
    if explicit:
        launch(_fma_kernel, grid, *arguments, BM=tile_rows, BN=tile_columns, BF16=bf16)
    else:
        launch(_dot_kernel, grid, *arguments, BM=tile_rows, BN=tile_columns, BK=32, BF16=bf16)
    return out
