"""Mixture of experts of profile fast: routed experts on MXFP4 weights, the shared one on two bf16 products.

Chips that multiply FP4 as it is have routed experts of their own (``native_experts``), by capability. Routed
experts whose weights MXFP4 does not hold exactly keep the strict kernels, rounded where the profile
rounds: right and slow.

Legend: T rows, D model width, I inner width, E experts, k experts a token, P = T * k pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import triton.language as tl

from deepinfer.kernels.gpu import experts as strict
from deepinfer.kernels.gpu import hopper_experts, mxfp4_weights, native_experts, native_weights
from deepinfer.kernels.gpu.capability import capability_at, has_wgmma
from deepinfer.kernels.gpu.elementary import greater, lesser, rounded
from deepinfer.kernels.gpu.expert_gemm import ExpertTile, combine, fast_silu, inner_products, outer_products
from deepinfer.kernels.gpu.expert_groups import Tiles, plan_tiles, plan_two_sizes
from deepinfer.kernels.gpu.fast_linear import AnyLinear, linear, pack_linear
from deepinfer.kernels.gpu.gemm import Workspace
from deepinfer.kernels.gpu.launching import Ptr, after_launches_before, ceil_div, kernel, launch
from deepinfer.kernels.gpu.mxfp4_weights import BLOCK, Mxfp4Weights, exact_codes, pack_codes
from deepinfer.kernels.gpu.native_experts import NativeExperts
from deepinfer.kernels.gpu.native_weights import pack_native
from deepinfer.kernels.interface import LoadExpert

Weights = TypeVar("Weights")
_FEW = 8
"""Pairs an expert has on average below which its tile holds 16."""
_WIDE = 1024
"""Width from which a launch that rounds rows costs less than rounding them in every tile again."""
_TILE = 1024


@dataclass(frozen=True)
class RoutedExperts:
    """MXFP4 weights of all experts of a layer."""

    gate: Mxfp4Weights
    up: Mxfp4Weights
    down: Mxfp4Weights


@dataclass(frozen=True)
class SharedExpert:
    """The two products of the only expert: gate over up [2 I, D], and down [D, I]."""

    inner: AnyLinear
    down: AnyLinear


AnyExperts = RoutedExperts | NativeExperts | SharedExpert | strict.PackedExperts


def pack_experts(num_experts: int, load: LoadExpert, place: torch.device) -> AnyExperts:
    """Pack experts one at a time; ``load(e)`` gives gate [I, D], up [I, D] and down [D, I] of expert e.

    Raises:
        ValueError: no expert.
    """
    if num_experts < 1:
        raise ValueError("pack_experts: a layer needs at least one expert")
    if num_experts == 1:
        gate, up, down = load(0)
        return SharedExpert(pack_linear(torch.cat((gate, up)), place), pack_linear(down, place))
    if capability_at(place).native_fp4:
        native = _each_packed(num_experts, load, place, pack_native)
        if native is not None:
            whole = [native_weights.joined(part) for part in native]
            return NativeExperts(native_weights.stacked(whole[0], whole[1]), whole[2])
    else:
        decoded = _each_packed(num_experts, load, place, pack_codes)
        if decoded is not None:
            return RoutedExperts(*(mxfp4_weights.joined(part) for part in decoded))
    return strict.pack_experts(num_experts, load, place)


def _each_packed(
    num_experts: int,
    load: LoadExpert,
    place: torch.device,
    pack: Callable[[torch.Tensor, torch.Tensor], Weights],
) -> tuple[list[Weights], ...] | None:
    """Gates, ups and downs of all experts by themselves; None if MXFP4 does not hold one exactly."""
    parts: tuple[list[Weights], ...] = ([], [], [])
    for e in range(num_experts):
        for part, weight in zip(parts, load(e), strict=True):
            exact = exact_codes(weight.detach().to(place, torch.float32).contiguous())
            if exact is None:
                return None
            part.append(pack(exact[0][None], exact[1][None]))
    return parts


def depth_of(inputs: int) -> int:
    """Channels of a step: a function of K alone, for it takes part in the order of the sums."""
    padded = ceil_div(inputs, BLOCK) * BLOCK
    return next(depth for depth in (256, 128, 64) if padded % depth == 0)


def _few(inputs: int) -> ExpertTile:
    return ExpertTile(64, 16, depth_of(inputs), 3, 4)


def _many(inputs: int) -> tuple[ExpertTile, ExpertTile]:
    depth = depth_of(inputs)
    return ExpertTile(128, 128, depth, 2, 8), ExpertTile(64, 32, depth, 3, 4)


def routed(
    x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor, experts: RoutedExperts, limit: float
) -> torch.Tensor:
    """bfloat16 [P, D]: every pair's expert applied to its row ``x`` [T, D] of bfloat16 values, weighted.

    Tiles follow from pairs per expert on average; apart from their depth, fixed by K, they move no bit.
    """
    num_experts = experts.gate.words.shape[0]
    inner: tuple[ExpertTile, ...]
    outer: tuple[ExpertTile, ...]
    plans: tuple[Tiles, ...]
    if x.shape[1] % BLOCK:
        x = torch.nn.functional.pad(x, (0, -x.shape[1] % BLOCK))
    if ids.numel() < _FEW * num_experts or not capability_at(x.device).buckets:
        plans, inner = (plan_tiles(ids, num_experts, 16),), (_few(x.shape[1]),)
    else:
        inner = _many(x.shape[1])
        plans = plan_two_sizes(ids, num_experts, inner[0].pairs, inner[1].pairs)
    if len(inner) > 1 or x.shape[1] >= _WIDE:  # else a launch costs more than rounding rows on their way
        x = x.to(torch.bfloat16)
    gluon = has_wgmma(x.device) and hopper_experts.fits(x.shape[1], experts.gate.num_outputs)
    h: torch.Tensor | None = None
    for tiles, tile in zip(plans, inner, strict=True):
        if gluon and tile.pairs == hopper_experts.PAIRS:
            h = hopper_experts.inner_products(x, tiles, shares, experts.gate, experts.up, limit, h)
        else:
            h = inner_products(x, tiles, shares, experts.gate, experts.up, limit, tile, h)
    assert h is not None
    outer = (_few(h.shape[1]),) if len(plans) == 1 else _many(h.shape[1])
    y: torch.Tensor | None = None
    for tiles, tile in zip(plans, outer, strict=True):
        if gluon and tile.pairs == hopper_experts.PAIRS:
            y = hopper_experts.outer_products(h, tiles, experts.down, y)
        else:
            y = outer_products(h, tiles, experts.down, tile, y)
    assert y is not None
    return y


@kernel
def _activate_kernel(
    products: Ptr,
    out: Ptr,
    limit: float,
    inner: int,
    BLOCK: tl.constexpr,
    CLAMP: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = products + row * 2 * inner + i
    g, u = tl.load(source, i < inner, other=0.0), tl.load(source + inner, i < inner, other=0.0)
    if CLAMP:
        g, u = lesser(g, limit), greater(lesser(u, limit), -limit)
    tl.store(out + row * inner + i, rounded(fast_silu(g) * u, True), i < inner)


def shared_expert(x: torch.Tensor, expert: AnyExperts, limit: float, workspace: Workspace) -> torch.Tensor:
    """The only expert applied to ``x``: float32 [T, D] of bfloat16 values in and out.

    Raises:
        ValueError: ``expert`` is not one expert.
    """
    if not isinstance(expert, SharedExpert):
        raise ValueError("moe: the shared expert must be packed as one")
    products = linear(x, expert.inner, workspace, True)
    inner = expert.inner.num_outputs // 2
    h = torch.empty(len(x), inner, dtype=torch.float32, device=x.device)
    grid = (len(x), ceil_div(inner, _TILE))
    launch(_activate_kernel, grid, products, h, limit, inner, BLOCK=_TILE, CLAMP=limit > 0)
    return linear(h, expert.down, workspace, True)


def pair_outputs(
    x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, experts: AnyExperts, limit: float
) -> torch.Tensor:
    """What every chosen expert gives: [T, D] of bfloat16 values, ids and weights [T, k] -> bfloat16 [P, D].

    Raises:
        ValueError: ``experts`` is one expert.
    """
    ids, shares = expert_ids.contiguous(), weights.contiguous()
    if isinstance(experts, RoutedExperts):
        return routed(x.contiguous(), ids, shares, experts, limit)
    if isinstance(experts, NativeExperts):
        return native_experts.routed(x.to(torch.bfloat16), ids, shares, experts, limit)
    if isinstance(experts, strict.PackedExperts):
        return strict.outputs(x.contiguous(), ids, shares, experts, limit, True)
    raise ValueError("moe: at least two routed experts are needed")


def moe(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    experts: AnyExperts,
    shared: Callable[[], torch.Tensor],
    limit: float,
) -> torch.Tensor:
    """See ``Ops.moe``: float32 [T, D] of bfloat16 values in and out.

    Args:
        x, expert_ids, weights, experts, limit: as there.
        shared: waits for what the shared expert adds, float32 [T, D].

    Raises:
        ValueError: ``experts`` is one expert.
    """
    pairs = pair_outputs(x, expert_ids, weights, experts, limit)
    return combine(pairs, shared(), expert_ids.shape[1], torch.float32)
