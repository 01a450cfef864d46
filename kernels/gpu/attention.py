"""Sparse attention with a sink, profile strict: scores, softmax, values in three passes.

Slots keep their order: window ascending, then selected entries ascending. An absent slot stands for the
product of +0 and -0, which leaves every chain as it is, so that it equals skipping the slot.

Legend: T rows, H heads, C latent width, J = W + K slots.
"""

from __future__ import annotations

import torch
import triton.language as tl

from deepinfer.kernels.gpu.elementary import exp, rounded
from deepinfer.kernels.gpu.launching import Block, Ptr, ceil_div, device, kernel, launch, power_of_two

_SLOTS, _CHANNELS, _HEADS = 32, 32, 16
_SCRATCH_VALUES = 1 << 26
"""Scores held at a time: 256 MiB; more rows run one part after the other."""


@device
def _slot(near_slots: Ptr, far_slots: Ptr, row: Block, j: Block, num_near: int, num_far: int) -> Block:
    """Pool row of slot ``j``, -1 where absent."""
    near = tl.load(near_slots + row * num_near + j, j < num_near, other=-1)
    is_far = (j >= num_near) & (j < num_near + num_far)
    far = tl.load(far_slots + row * num_far + (j - num_near), is_far, other=-1)
    return near * (is_far == 0).to(tl.int64) + far * is_far.to(tl.int64)  # Ascend selects no int64


@device
def _keys(near: Ptr, far: Ptr, places: Block, is_far: Block, inside: Block) -> Block:
    """Key values at ``places``, -0 outside."""
    a = tl.load(near + places, inside & (is_far == 0), other=-0.0)
    b = tl.load(far + places, inside & is_far, other=-0.0)
    return tl.where(is_far, b, a)


@kernel
def _score_kernel(
    q: Ptr,
    near: Ptr,
    near_slots: Ptr,
    far: Ptr,
    far_slots: Ptr,
    z: Ptr,
    scale: float,
    num_near: int,
    num_far: int,
    num_heads: int,
    width: int,
    BH: tl.constexpr,
    BJ: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BJ + tl.arange(0, BJ)
    h = tl.program_id(2) * BH + tl.arange(0, BH)
    slots, is_far = _slot(near_slots, far_slots, row, j, num_near, num_far), j >= num_near
    acc = tl.zeros((BH, BJ), tl.float32)
    for first in range(0, width, BC):
        c = first + tl.arange(0, BC)
        places = (row * num_heads + h)[:, None] * width + c[None, :]
        a = tl.load(q + places, (h < num_heads)[:, None] & (c < width)[None, :], other=0.0)
        inside = (c < width)[:, None] & (slots >= 0)[None, :]
        is_far_here = tl.broadcast_to(is_far[None, :], (BC, BJ))
        b = _keys(near, far, slots[None, :] * width + c[:, None], is_far_here, inside)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    num_slots = num_near + num_far
    targets = z + (row * num_heads + h)[:, None] * num_slots + j[None, :]
    tl.store(targets, acc * scale, (h < num_heads)[:, None] & (j < num_slots)[None, :])


@kernel
def _softmax_kernel(
    z: Ptr,
    near_slots: Ptr,
    far_slots: Ptr,
    sink: Ptr,
    den: Ptr,
    num_near: int,
    num_far: int,
    num_heads: int,
    BH: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    """Scores to exponentials in place, and denominators; a denominator of 0 means that no slot is visible."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BH)
    inside, num_slots = h < num_heads, num_near + num_far
    line = z + (row * num_heads + h) * num_slots
    largest = tl.full((BH,), float("-inf"), tl.float32)
    visible = row * 0
    for j in range(0, num_slots):
        slot = _slot(near_slots, far_slots, row, j, num_near, num_far)
        value = tl.load(line + j, inside & (slot >= 0), other=float("-inf"))
        largest = tl.where(value > largest, value, largest)
        visible += (slot >= 0).to(tl.int64)
    total = tl.zeros((BH,), tl.float32)
    for j in range(0, num_slots):
        slot = _slot(near_slots, far_slots, row, j, num_near, num_far)
        value = tl.load(line + j, inside, other=0.0)
        p = tl.where(slot >= 0, exp(value - largest), 0.0)
        total = total + p
        tl.store(line + j, rounded(p, BF16), inside)
    total = total + exp(tl.load(sink + h, inside, other=0.0) - largest)
    tl.store(den + row * num_heads + h, tl.where(visible > 0, total, 0.0), inside)


@kernel
def _value_kernel(
    p: Ptr,
    near: Ptr,
    near_slots: Ptr,
    far: Ptr,
    far_slots: Ptr,
    den: Ptr,
    out: Ptr,
    num_near: int,
    num_far: int,
    num_heads: int,
    width: int,
    BH: tl.constexpr,
    BJ: tl.constexpr,
    BC: tl.constexpr,
    BF16: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    h = tl.program_id(2) * BH + tl.arange(0, BH)
    num_slots = num_near + num_far
    acc = tl.zeros((BH, BC), tl.float32)
    for first in range(0, num_slots, BJ):
        j = first + tl.arange(0, BJ)
        slots = _slot(near_slots, far_slots, row, j, num_near, num_far)
        places = (row * num_heads + h)[:, None] * num_slots + j[None, :]
        a = tl.load(p + places, (h < num_heads)[:, None] & (j < num_slots)[None, :], other=0.0)
        inside = (slots >= 0)[:, None] & (c < width)[None, :]
        is_far = tl.broadcast_to((j >= num_near)[:, None], (BJ, BC))
        b = _keys(near, far, slots[:, None] * width + c[None, :], is_far, inside)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    divisor = tl.load(den + row * num_heads + h, h < num_heads, other=1.0)[:, None]
    quotient = tl.div_rn(acc, tl.broadcast_to(tl.where(divisor == 0.0, 1.0, divisor), (BH, BC)))
    mixed = tl.where(divisor == 0.0, 0.0, rounded(quotient, BF16))
    targets = out + (row * num_heads + h)[:, None] * width + c[None, :]
    tl.store(targets, mixed, (h < num_heads)[:, None] & (c < width)[None, :])


def sparse_attention(
    q: torch.Tensor,
    window: torch.Tensor,
    window_slots: torch.Tensor,
    main: torch.Tensor,
    main_slots: torch.Tensor,
    sink: torch.Tensor,
    bf16: bool,
) -> torch.Tensor:
    """One softmax over window and selected slots together.

    Args:
        q: float32 [T, H, C].
        window: float32 [P, C] pool of sliding-window latents.
        window_slots: int64 [T, W], pool rows in ascending position, -1 where invisible.
        main: float32 [P', C] pool of compressed latents (any pool if ``main_slots`` has no columns).
        main_slots: int64 [T, K], pool rows in ascending entry, -1 where absent.
        sink: float32 [H], scaled logit without a value.
        bf16: profile fast.

    Returns:
        float32 [T, H, C]; a row without any visible slot is zero.
    """
    queries, near, far = q.contiguous(), window.contiguous(), main.contiguous()
    out = torch.empty_like(queries)
    num_rows, num_heads, _ = queries.shape
    num_slots = window_slots.shape[1] + main_slots.shape[1]
    step = max(1, _SCRATCH_VALUES // max(num_heads * num_slots, 1))
    for low in range(0, num_rows, step):
        part = slice(low, min(low + step, num_rows))
        slots = (window_slots[part].contiguous(), main_slots[part].contiguous())
        _attend(queries[part], near, slots[0], far, slots[1], sink, out[part], bf16)
    return out


def _attend(
    q: torch.Tensor,
    near: torch.Tensor,
    near_slots: torch.Tensor,
    far: torch.Tensor,
    far_slots: torch.Tensor,
    sink: torch.Tensor,
    out: torch.Tensor,
    bf16: bool,
) -> None:
    num_rows, num_heads, width = q.shape
    num_near, num_far = near_slots.shape[1], far_slots.shape[1]
    num_slots, head_tiles = num_near + num_far, ceil_div(num_heads, _HEADS)
    z, den = q.new_empty(num_rows, num_heads, num_slots), q.new_empty(num_rows, num_heads)
    tile = {"BH": _HEADS, "BJ": _SLOTS, "BC": _CHANNELS}
    pools = (near, near_slots, far, far_slots)
    sizes = (num_near, num_far, num_heads, width)
    grid: tuple[int, ...] = (num_rows, ceil_div(num_slots, _SLOTS), head_tiles)
    launch(_score_kernel, grid, q, *pools, z, width**-0.5, *sizes, **tile)
    launch(
        _softmax_kernel,
        (num_rows,),
        *(z, near_slots, far_slots, sink, den, num_near, num_far, num_heads),
        num_warps=1,
        BH=power_of_two(num_heads),
        BF16=bf16,
    )
    grid = (num_rows, ceil_div(width, _CHANNELS), head_tiles)
    launch(_value_kernel, grid, z, *pools, den, out, *sizes, BF16=bf16, **tile)
