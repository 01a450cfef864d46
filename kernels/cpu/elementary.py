"""Elementary functions as fixed sequences of IEEE operations: the same bits on every machine.

The functions of libm, numpy, torch and CUDA differ from each other and from version to version in the last
bit. These use only fused multiply-add, add, multiply, divide, square root and bit operations, each correctly
rounded by IEEE 754, in one written order. Logarithms work in float64: few are needed, and the float32 result
is then nearly always the correctly rounded one. Errors in ulp are measured in
``tests/kernels/test_elementary.py`` and listed in docs/orders.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from deepinfer.kernels.cpu.compiled import emitted, inlined

_F32, _F64, _I32, _I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)


def _fused(context: Any, builder: ir.IRBuilder, args: list[ir.Value], kind: ir.Type, suffix: str) -> ir.Value:
    function_type = ir.FunctionType(kind, [kind, kind, kind])
    declare: Any = cgutils.get_or_insert_function
    return builder.call(declare(builder.module, function_type, f"llvm.fma.{suffix}"), args)


@emitted
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """float32 ``a * b + c`` with one rounding, emulated exactly where the processor has no such unit."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fused(context, builder, args, _F32, "f32")

    return types.float32(types.float32, types.float32, types.float32), codegen


@emitted
def fma64(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """float64 ``a * b + c`` with one rounding."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _fused(context, builder, args, _F64, "f64")

    return types.float64(types.float64, types.float64, types.float64), codegen


@emitted
def bits_of(typingctx: Any, x: Any) -> Any:
    """The bit pattern of a float32 as int32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I32)

    return types.int32(types.float32), codegen


@emitted
def float_of(typingctx: Any, x: Any) -> Any:
    """The float32 with a given int32 bit pattern."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


@emitted
def bits_of64(typingctx: Any, x: Any) -> Any:
    """The bit pattern of a float64 as int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I64)

    return types.int64(types.float64), codegen


@emitted
def float_of64(typingctx: Any, x: Any) -> Any:
    """The float64 with a given int64 bit pattern."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F64)

    return types.float64(types.int64), codegen


_LOG2_E = np.float32(1.442695)
_ROUNDER = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, ties to even
_LN2_HIGH = np.float32(0.693359375)  # nine significant bits
_LN2_LOW = np.float32(-0.00021219444)
_E2, _E3, _E4 = np.float32(0.49999994), np.float32(0.16666521), np.float32(0.04166839)
_E5, _E6 = np.float32(0.008368724), np.float32(0.0013814584)
_EXP_MAX, _EXP_MIN = np.float32(88.72284), np.float32(-103.97208)
_ONE, _ZERO, _INF = np.float32(1.0), np.float32(0.0), np.float32(np.inf)
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@inlined
def exp(x: np.float32) -> np.float32:
    """e**x: ``x = n ln 2 + r``, minimax polynomial of degree 6 in r, scaled by 2**n in two exact halves."""
    clamped = min(max(x, _EXP_MIN), _EXP_MAX)
    n = fma(clamped, _LOG2_E, _ROUNDER) - _ROUNDER
    r = fma(n, -_LN2_HIGH, clamped)
    r = fma(n, -_LN2_LOW, r)
    q = fma(_E6, r, _E5)
    q = fma(q, r, _E4)
    q = fma(q, r, _E3)
    q = fma(q, r, _E2)
    y = _ONE + fma(q, r * r, r)
    whole = np.int32(n)
    half = whole >> np.int32(1)
    y = y * float_of((half + _BIAS) << _MANTISSA)
    y = y * float_of((whole - half + _BIAS) << _MANTISSA)
    y = _INF if x > _EXP_MAX else y
    y = _ZERO if x < _EXP_MIN else y
    return y if x == x else x


@inlined
def log64(x: np.float64) -> np.float64:
    """Natural logarithm of a positive normal float64, error below 1e-13.

    ``2 atanh((m - 1) / (m + 1)) + e ln 2``.
    """
    bits = bits_of64(x)
    exponent = (bits >> 52) - 1023
    mantissa = float_of64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000)
    if mantissa > 1.4142135623730951:
        mantissa = mantissa * 0.5
        exponent += 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    p = fma64(z, 1.0 / 19.0, 1.0 / 17.0)
    p = fma64(p, z, 1.0 / 15.0)
    p = fma64(p, z, 1.0 / 13.0)
    p = fma64(p, z, 1.0 / 11.0)
    p = fma64(p, z, 1.0 / 9.0)
    p = fma64(p, z, 1.0 / 7.0)
    p = fma64(p, z, 1.0 / 5.0)
    p = fma64(p, z, 1.0 / 3.0)
    tail = fma64(p * z, 2.0 * s, 2.0 * s)
    return np.float64(fma64(np.float64(exponent), 0.6931471805599453, tail))


@inlined
def log(x: np.float32) -> np.float32:
    """Natural logarithm of a float32: -inf at zero, NaN below, inf at inf.

    Subnormals are exact in float64.
    """
    if x == _ZERO:
        return -_INF
    if x < _ZERO or x != x:
        return np.float32(np.nan)
    if x == _INF:
        return _INF
    return np.float32(log64(np.float64(x)))


@inlined
def sigmoid(x: np.float32) -> np.float32:
    """``1 / (1 + exp(-x))`` with a true division."""
    return _ONE / (_ONE + exp(-x))


@inlined
def silu(x: np.float32) -> np.float32:
    """``x / (1 + exp(-x))`` with a true division."""
    return x / (_ONE + exp(-x))


@inlined
def softplus(x: np.float32) -> np.float32:
    """``x`` above 20, else ``log1p(exp(x))``.

    Log1p as ``log(u) e / (u - 1)``, u = 1 + e, which loses nothing for small e.
    """
    if x > np.float32(20.0):
        return x
    e = np.float64(exp(x))
    u = 1.0 + e
    if u == 1.0:
        return np.float32(e)
    return np.float32(log64(u) * (e / (u - 1.0)))


@inlined
def rsqrt(x: np.float32) -> np.float32:
    """``1 / sqrt(x)``: two correctly rounded operations."""
    return np.float32(_ONE / np.sqrt(x))


@inlined
def to_bf16(x: np.float32) -> np.float32:
    """Round a float32 to the nearest bfloat16, ties to even, and back; NaN stays NaN."""
    bits = bits_of(x)
    rounded = (bits + np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))) & np.int32(-65536)
    return np.float32(float_of(rounded)) if x == x else x
