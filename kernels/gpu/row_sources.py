"""Where a kernel takes the rows from that it multiplies: a decoded float32 pool, or packed cache records.

Records are decoded in registers to the very bfloat16 values that a decoded pool holds, channels in the same
order, so that a kernel has the same bits on both.

Legend: J rows of a tile, C channels of a row, CP the power of two that holds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from deepinfer.kernels.gpu.block_codes import power
from deepinfer.kernels.gpu.elementary import float_of
from deepinfer.kernels.gpu.lanes import spread
from deepinfer.kernels.gpu.launching import Block, Ptr, device
from deepinfer.kernels.gpu.records import BoundRecords

_FLOATS: tl.constexpr = tl.constexpr("floats")
_MXFP8: tl.constexpr = tl.constexpr("mxfp8")
_FP4: tl.constexpr = tl.constexpr("fp4")


@dataclass(frozen=True)
class RowSource:
    """Rows as kernels see them.

    Attributes:
        kind: "floats" or the kind of the records.
        data, scales: where the first row begins; scales are anything for floats.
        layout: rows of a group; steps of ``data`` from group to group and row to row; the same of ``scales``.
    """

    kind: str
    data: torch.Tensor
    scales: torch.Tensor
    layout: tuple[int, int, int, int, int]


def floats(pool: torch.Tensor) -> RowSource:
    """A decoded pool, float32 [P, C]: every row a group of its own."""
    own = pool.contiguous()
    return RowSource("floats", own, own, (1, own.shape[1], 0, 0, 0))


def packed(records: BoundRecords) -> RowSource:
    """Packed records, as they lie.

    Raises:
        ValueError: float32 records, which are no codes.
    """
    if records.kind == "exact":
        raise ValueError("row sources: float32 records have to be loaded first")
    _, *layout = records.layout
    return RowSource(records.kind, records.data, records.scales, tuple(layout))  # type: ignore[arg-type]


@device
def _value_e4m3(codes: Block) -> Block:
    """The values of ``block_codes.value_e4m3`` in fewer instructions.

    Sign, exponent and mantissa in the places that float32 has for them are the value times 2**-120,
    subnormals included; the product is exact.
    """
    return float_of(((codes << 24) >> 4) & -0x78100000) * 2.0**120


@device
def _value_e2m1(codes: Block) -> Block:
    """The same of ``block_codes.value_e2m1`` from codes in the upper four bits; times 2**-126 here."""
    return float_of((codes >> 6) & -0x7E400000) * 2.0**126


@device
def from_nowhere(values: Block) -> Block:
    """``values``, in a way that hides from the compiler how narrow codes or flags were that they come from.

    It would deal channels to the lanes of the matrix unit by the bytes of a load, and so add them in another
    order; and it would decode twice, once for each product.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [values], tl.bfloat16, is_pure=False, pack=2)


@device
def codes_of(
    data: Ptr,
    scales: Ptr,
    group: Block,
    own: Block,
    seen: Block,
    KIND: tl.constexpr,
    LAYOUT: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
) -> tuple[Block, Block]:
    """Rows ``own`` of groups, int64 [J] each, as they lie, codes and bytes of scales; zeros if not ``seen``.

    Floats stand for both.
    """
    first = (data + group * LAYOUT[1] + own * LAYOUT[2])[:, None]
    if KIND == _FLOATS:
        c = tl.arange(0, CP)
        codes = tl.load(first + c[None, :], seen[:, None] & (c < C)[None, :], other=0.0)
        byte = codes
    else:
        GROUP: tl.constexpr = 16 if KIND == _FP4 else 32
        g = tl.arange(0, CP // GROUP)
        places = (scales + group * LAYOUT[3] + own * LAYOUT[4])[:, None] + g[None, :]
        byte = tl.load(places, seen[:, None] & (g < C // GROUP)[None, :], other=0)
        PER: tl.constexpr = 1 if KIND == _MXFP8 else 2
        i = tl.arange(0, CP // PER)
        codes = tl.load(first + i[None, :], seen[:, None] & (i < C // PER)[None, :], other=0)
    return codes, byte


@device
def values_of(codes: Block, scale_bytes: Block, KIND: tl.constexpr, CP: tl.constexpr) -> Block:
    """What ``codes_of`` gives as bfloat16 [J, CP]."""
    if KIND == _FLOATS:
        value = codes
    else:
        byte = scale_bytes.to(tl.int32)
        if KIND == _FP4:
            scale = tl.where((byte & 127) == 127, float("nan"), _value_e4m3(byte))
        else:
            scale = tl.where(byte == 0, float_of(byte + 0x400000), power(byte))
            scale = tl.where(byte == 255, float("nan"), scale)
        if KIND == _MXFP8:
            value = _value_e4m3(codes.to(tl.int32)) * spread(scale, 32)
        else:
            GROUP: tl.constexpr = 16 if KIND == _FP4 else 32
            pairs = codes.to(tl.int32)
            both = tl.join(_value_e2m1(pairs << 28), _value_e2m1(pairs << 24))
            value = both.reshape(both.shape[0], CP) * spread(scale, GROUP)
    half = value.to(tl.bfloat16)
    return half if KIND == _FLOATS else from_nowhere(half)


@device
def rows_of(
    data: Ptr,
    scales: Ptr,
    group: Block,
    own: Block,
    seen: Block,
    KIND: tl.constexpr,
    LAYOUT: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
) -> Block:
    """Rows ``own`` of groups, int64 [J] each, as bfloat16 [J, CP]; zeros where not ``seen``."""
    codes, byte = codes_of(data, scales, group, own, seen, KIND, LAYOUT, C, CP)
    return values_of(codes, byte, KIND, CP)
