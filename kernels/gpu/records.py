"""Packed cache records on the device: quantise rows into paged bytes, decode chosen records.

A program handles one row. A row that names no record is skipped, and a load gives zeros for it; unlike the
CPU set nothing is raised, because the answer would have to be waited for.

Legend: T rows to store, n records to load, W channels of a row, B blocks of S records.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.block_codes import (
    code_e4m3,
    fp4_scale,
    mxfp4_exponent,
    mxfp8_exponent,
    power,
    quotient,
    signed_e2m1,
    signed_e4m3,
    value_e2m1,
    value_e4m3,
)
from deepinfer.kernels.gpu.elementary import bits_of, float_of
from deepinfer.kernels.gpu.launching import (
    Block,
    Ptr,
    after_launches_before,
    device,
    kernel,
    launch,
    power_of_two,
)

_KINDS = {"mxfp8": (0, 32, 32), "mxfp4": (1, 32, 16), "fp4": (2, 16, 8), "exact": (3, 1, 4)}
"""Number in the kernels, channels of a group, data bytes of a group."""


@dataclass(frozen=True)
class BoundRecords:
    """Record buffers that were checked once: data uint8 or int8 [B, S, d], scales of that type [B, S, s]."""

    kind: str
    width: int
    data: torch.Tensor
    scales: torch.Tensor

    @property
    def layout(self) -> tuple[int, ...]:
        """Blocks, records of a block; bytes from block to block and record to record, of both buffers."""
        return (*self.data.shape[:2], *self.data.stride()[:2], *self.scales.stride()[:2])


def bind_records(kind: str, width: int, data: torch.Tensor, scales: torch.Tensor) -> BoundRecords:
    """See ``Ops.bind_records``.

    Raises:
        ValueError: a shape does not fit the format.
    """
    if kind not in _KINDS:
        raise ValueError(f"records: unknown kind {kind!r}; choose from {', '.join(_KINDS)}")
    number, group, group_bytes = _KINDS[kind]
    num_bytes, num_scales = width // group * group_bytes, 0 if number == 3 else width // group
    fits = (
        width > 0
        and width % group == 0
        and data.ndim == 3
        and data.shape[2] == num_bytes
        and scales.shape == (*data.shape[:2], num_scales)
        and data.dtype == scales.dtype == torch.uint8
        and data.stride(2) == 1
        and (num_scales == 0 or scales.stride(2) == 1)
    )
    if not fits:
        raise ValueError(
            f"records: {kind} of width {width} (a multiple of {group}) needs uint8 data"
            f" [B, S, {num_bytes}] and scales [B, S, {num_scales}], the last axes contiguous;"
            f" got {list(data.shape)} and {list(scales.shape)}"
        )
    return BoundRecords(kind, width, data, scales)


@device
def _place(row: Block, per_block: int, block_step: int, step: int) -> Block:
    return (row // per_block) * block_step + (row % per_block) * step


@device
def _codes(x: Block, scale: Block, largest: Block, KIND: tl.constexpr) -> Block:
    """Codes of ``x`` over its scale; what a group with NaN or infinity gets is decided on integers.

    The assembler turns a comparison and a selection of floats into a minimum, which drops a NaN, and gives
    NaNs a payload of its own. ``largest`` is the bit pattern of the group's largest magnitude.
    """
    own, group = bits_of(x) & 0x7FFFFFFF, tl.broadcast_to(largest, x.shape)
    y = quotient(x, scale)
    if KIND == 2:
        no_number = (own > 0x7F800000) | (group > 0x7F800000)
        code = tl.where(no_number, 3 | ((bits_of(x) >> 28) & 8), signed_e2m1(x, y))
    else:
        sign = ((bits_of(x) >> 24) & 128) if KIND == 0 else ((bits_of(x) >> 28) & 8)
        code = signed_e4m3(x, y) if KIND == 0 else signed_e2m1(x, y)
        # the scale of a group with NaN is -0, that of one with infinity is infinity
        code = tl.where(group > 0x7F800000, (126 if KIND == 0 else 7) | sign, code)
        no_number = (own > 0x7F800000) | ((group > 0x7F800000) & (own == 0))
        no_number = no_number | ((group == 0x7F800000) & (own == 0x7F800000))
        code = tl.where(no_number, (60 if KIND == 0 else 3) | sign, code)
    return code


@kernel
def _store_kernel(
    values: Ptr,
    rows: Ptr,
    data: Ptr,
    scales: Ptr,
    num_groups: int,
    blocks: int,
    per_block: int,
    data_block: int,
    data_step: int,
    scale_block: int,
    scale_step: int,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + t)
    exists = (row >= 0) & (row < blocks * per_block)
    g = tl.arange(0, GROUPS)
    inside = (g < num_groups) & exists
    half = tl.arange(0, GROUP // 2)
    even = t * num_groups * GROUP + g[:, None] * GROUP + 2 * half[None, :]
    within = inside[:, None] & (half >= 0)[None, :]
    x0, x1 = tl.load(values + even, within, other=0.0), tl.load(values + even + 1, within, other=0.0)
    bits = tl.maximum(tl.max(bits_of(x0) & 0x7FFFFFFF, axis=1), tl.max(bits_of(x1) & 0x7FFFFFFF, axis=1))
    finite, amax = bits < 0x7F800000, float_of(bits)
    largest = bits[:, None]
    if KIND == 2:
        scale = fp4_scale(amax)
        byte = tl.where(finite, code_e4m3(scale), 127)
    else:
        exponent = mxfp8_exponent(amax) if KIND == 0 else mxfp4_exponent(amax)
        scale = tl.where(bits == 0x7F800000, float("inf"), power(exponent))
        byte = tl.where(finite, exponent, 255)
    target = scales + _place(row, per_block, scale_block, scale_step)
    tl.store(target + g, byte.to(scales.dtype.element_ty), inside)
    c0, c1 = _codes(x0, scale[:, None], largest, KIND), _codes(x1, scale[:, None], largest, KIND)
    target = data + _place(row, per_block, data_block, data_step)
    if KIND == 0:
        place = target + g[:, None] * GROUP + 2 * half[None, :]
        tl.store(place, c0.to(data.dtype.element_ty), within)
        tl.store(place + 1, c1.to(data.dtype.element_ty), within)
    else:
        pair = (c0 & 255) | ((c1 & 255) << 4)
        tl.store(target + g[:, None] * (GROUP // 2) + half[None, :], pair.to(data.dtype.element_ty), within)


@kernel
def _load_kernel(
    rows: Ptr,
    data: Ptr,
    scales: Ptr,
    out: Ptr,
    num_groups: int,
    blocks: int,
    per_block: int,
    data_block: int,
    data_step: int,
    scale_block: int,
    scale_step: int,
    KIND: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    EARLY: tl.constexpr = False,
) -> None:
    if EARLY:
        after_launches_before()
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + t)
    exists = (row >= 0) & (row < blocks * per_block)
    g, i = tl.arange(0, GROUPS), tl.arange(0, GROUP)
    inside = (g < num_groups)[:, None] & (i >= 0)[None, :]
    readable = inside & exists
    source = scales + _place(row, per_block, scale_block, scale_step)
    byte = tl.load(source + g, (g < num_groups) & exists, other=127).to(tl.int32) & 255
    if KIND == 2:
        scale, is_nan = value_e4m3(byte), (byte & 127) == 127
    else:
        scale, is_nan = tl.where(byte == 0, float_of(byte + 0x400000), power(byte)), byte == 255
    source = data + _place(row, per_block, data_block, data_step)
    if KIND == 0:
        codes = tl.load(source + g[:, None] * GROUP + i[None, :], readable, other=0).to(tl.int32) & 255
        value = value_e4m3(codes)
    else:
        pairs = tl.load(source + (g[:, None] * GROUP + i[None, :]) // 2, readable, other=0).to(tl.int32)
        value = value_e2m1((pairs >> (4 * (i[None, :] % 2))) & 15)
    bits = bits_of(value * scale[:, None])
    bits = tl.where(is_nan[:, None], 0x7FC00000, bits)
    bits = tl.where(exists, bits, 0)
    tl.store(out + t * num_groups * GROUP + g[:, None] * GROUP + i[None, :], float_of(bits), inside)


@kernel
def _copy_kernel(
    raw: Ptr,
    rows: Ptr,
    data: Ptr,
    num_bytes: int,
    blocks: int,
    per_block: int,
    data_block: int,
    data_step: int,
    STORE: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    t = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + t)
    exists = (row >= 0) & (row < blocks * per_block)
    i = tl.arange(0, BYTES)
    record, own = data + _place(row, per_block, data_block, data_step) + i, raw + t * num_bytes + i
    inside = i < num_bytes
    if STORE:
        tl.store(record, tl.load(own, inside, other=0), inside & exists)
    else:
        tl.store(own, tl.load(record, inside & exists, other=0), inside)


def store_records(records: BoundRecords, values: torch.Tensor, rows: torch.Tensor) -> None:
    """Quantise ``values`` float32 [T, W] into their records; see ``Ops.store_records``."""
    if values.dtype != torch.float32 or values.shape != (len(rows), records.width):
        raise ValueError(f"store_records: {len(rows)} rows for {values.dtype} values {list(values.shape)}")
    number, group, _ = _KINDS[records.kind]
    source = values.contiguous()
    if number == 3:
        _copy(records, source, rows, True)
        return
    num_groups = records.width // group
    arguments = (source, rows.contiguous(), records.data, records.scales, num_groups, *records.layout)
    sizes = {"GROUP": group, "GROUPS": power_of_two(num_groups)}
    launch(_store_kernel, (len(rows),), *arguments, KIND=number, **sizes)


def load_records(records: BoundRecords, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Decode records ``rows`` int64 [n] to float32 [n, W], zeros for -1; see ``Ops.load_records``."""
    shape = (len(rows), records.width)
    if out is None:
        out = torch.empty(shape, dtype=torch.float32, device=records.data.device)
    elif out.shape != shape or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"load_records: out is {list(out.shape)}, needs contiguous {list(shape)}")
    number, group, _ = _KINDS[records.kind]
    if number == 3:
        _copy(records, out, rows, False)
        return out
    num_groups = records.width // group
    arguments = (rows.contiguous(), records.data, records.scales, out, num_groups, *records.layout)
    sizes = {"GROUP": group, "GROUPS": power_of_two(num_groups)}
    launch(_load_kernel, (len(rows),), *arguments, KIND=number, **sizes)
    return out


def _copy(records: BoundRecords, raw: torch.Tensor, rows: torch.Tensor, store: bool) -> None:
    num_bytes = 4 * records.width
    arguments = (
        raw.view(records.data.dtype),
        rows.contiguous(),
        records.data,
        num_bytes,
        *records.layout[:4],
    )
    launch(_copy_kernel, (len(rows),), *arguments, STORE=store, BYTES=power_of_two(num_bytes))
