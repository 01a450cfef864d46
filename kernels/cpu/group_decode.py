"""Decode one group of packed codes, as LLVM vector code.

``target[i] = value(code[i]) * scale``: one exact decode and one multiplication per channel, so there is no
order to keep. From a numba loop LLVM makes scalar code for nibbles, three to five times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import types

from deepinfer.kernels.cpu.compiled import emitted

_MAGNITUDES_E4M3 = [
    (c % 8) * 2.0**-9 if c < 8 else (1 + (c % 8) / 8) * 2.0 ** (c // 8 - 7) for c in range(127)
] + [np.nan]
E4M3_VALUES = np.array(_MAGNITUDES_E4M3 + [-v for v in _MAGNITUDES_E4M3], np.float32)
"""Value of each e4m3 byte; 0x7f and 0xff are NaN."""
E8M0_VALUES = np.array([2.0 ** (byte - 127) for byte in range(255)] + [np.nan], np.float32)
"""Value of each e8m0 byte; 255 is NaN."""

Decode = Callable[[np.int64, np.int64, np.float32], None]
"""``decode(source, target, scale)``: addresses of the codes of a group and of its float32 values."""

_BYTE, _I32, _I64, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _splat(element: ir.Type, lanes: int, value: float) -> ir.Constant:
    return ir.Constant(ir.VectorType(element, lanes), [value] * lanes)


def _values(builder: ir.IRBuilder, codes: ir.Value, mantissa: int, sign_bit: int, bias: int) -> ir.Value:
    """Float32 values of small floating-point codes, one per byte of the vector ``codes``.

    A code is sign, exponent and ``mantissa`` bits, the sign at ``sign_bit``. With a zero exponent field it
    counts steps of ``2**(1 - bias - mantissa)``; else it is a float32 pattern with another bias.
    """
    lanes = codes.type.count
    wide = builder.zext(codes, ir.VectorType(_I32, lanes))

    def integers(value: int) -> ir.Constant:
        return _splat(_I32, lanes, value)

    magnitude = builder.and_(wide, integers((1 << sign_bit) - 1))
    rebias = integers((127 - bias) << mantissa)
    normal = builder.shl(builder.add(magnitude, rebias), integers(23 - mantissa))
    floats = ir.VectorType(_FLOAT, lanes)
    counted = builder.sitofp(magnitude, floats)
    tiny = builder.bitcast(
        builder.fmul(counted, _splat(_FLOAT, lanes, 2.0 ** (1 - bias - mantissa))), wide.type
    )
    is_tiny = builder.icmp_unsigned("<", magnitude, integers(1 << mantissa))
    bits = builder.select(is_tiny, tiny, normal)
    sign = builder.shl(builder.and_(wide, integers(1 << sign_bit)), integers(31 - sign_bit))
    return builder.bitcast(builder.or_(bits, sign), floats)


def _load(builder: ir.IRBuilder, address: ir.Value, count: int) -> ir.Value:
    pointer = builder.inttoptr(address, ir.VectorType(_BYTE, count).as_pointer())
    codes = builder.load(pointer)
    codes.align = 1
    return codes


def _store_scaled(builder: ir.IRBuilder, values: ir.Value, target: ir.Value, scale: ir.Value) -> None:
    lanes = values.type.count
    undefined = ir.Constant(values.type, ir.Undefined)
    single = builder.insert_element(undefined, scale, ir.Constant(_I32, 0))
    factor = builder.shuffle_vector(single, undefined, _splat(_I32, lanes, 0))
    store = builder.store(builder.fmul(values, factor), builder.inttoptr(target, values.type.as_pointer()))
    store.align = 4


def make_e4m3_decode(group: int) -> Decode:
    """Decode ``group`` e4m3 codes, one per byte; 0x7f and 0xff (NaN), which no record holds, give 480."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        source, target, scale = args
        codes = _load(builder, source, group)
        _store_scaled(builder, _values(builder, codes, 3, 7, 7), target, scale)
        return context.get_dummy_value()

    @emitted
    def decode(typingctx: Any, source: Any, target: Any, scale: Any) -> Any:
        return types.void(types.int64, types.int64, types.float32), codegen

    return cast(Decode, decode)


def make_e2m1_decode(group: int) -> Decode:
    """Decode ``group`` e2m1 codes, two per byte, the low nibble first."""
    num_bytes = group // 2
    order = [lane // 2 + num_bytes * (lane % 2) for lane in range(group)]

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
        source, target, scale = args
        pairs = _load(builder, source, num_bytes)
        low = builder.and_(pairs, _splat(_BYTE, num_bytes, 15))
        high = builder.lshr(pairs, _splat(_BYTE, num_bytes, 4))
        codes = builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, group), order))
        _store_scaled(builder, _values(builder, codes, 1, 3, 1), target, scale)
        return context.get_dummy_value()

    @emitted
    def decode(typingctx: Any, source: Any, target: Any, scale: Any) -> Any:
        return types.void(types.int64, types.int64, types.float32), codegen

    return cast(Decode, decode)
