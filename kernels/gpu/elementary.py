"""Elementary functions on the device: the sequences of ``kernels/cpu/elementary.py``, operation by operation.

Divisions and square roots are the correctly rounded ones (``div_rn``, ``sqrt_rn``); Triton's plain ``/`` on
float32 is an approximation. Comparisons follow Python's ``min`` and ``max``: the first argument stays unless
the second is strictly better.
"""

from __future__ import annotations

import triton.language as tl

from deepinfer.kernels.gpu.launching import Block, device

_LOG2_E: tl.constexpr = tl.constexpr(1.442695)
_ROUNDER: tl.constexpr = tl.constexpr(12582912.0)
_LN2_HIGH: tl.constexpr = tl.constexpr(0.693359375)
_LN2_LOW: tl.constexpr = tl.constexpr(-0.00021219444)
_E2: tl.constexpr = tl.constexpr(0.49999994)
_E3: tl.constexpr = tl.constexpr(0.16666521)
_E4: tl.constexpr = tl.constexpr(0.04166839)
_E5: tl.constexpr = tl.constexpr(0.008368724)
_E6: tl.constexpr = tl.constexpr(0.0013814584)
_EXP_MAX: tl.constexpr = tl.constexpr(88.72284)
_EXP_MIN: tl.constexpr = tl.constexpr(-103.97208)


@device
def greater(a: Block, b: Block) -> Block:
    """Python's ``max(a, b)``."""
    return tl.where(b > a, b, a)


@device
def lesser(a: Block, b: Block) -> Block:
    """Python's ``min(a, b)``."""
    return tl.where(b < a, b, a)


@device
def bits_of(x: Block) -> Block:
    """The bit pattern of a float32 as int32."""
    return x.to(tl.int32, bitcast=True)


@device
def float_of(bits: Block) -> Block:
    """The float32 with a given int32 bit pattern."""
    return bits.to(tl.float32, bitcast=True)


@device
def copy_sign(magnitude: Block, x: Block) -> Block:
    """``magnitude`` with the sign of ``x``."""
    return float_of((bits_of(magnitude) & 0x7FFFFFFF) | (bits_of(x) & -0x80000000))


@device
def exp(x: Block) -> Block:
    """e**x of float32."""
    clamped = lesser(greater(x, _EXP_MIN), _EXP_MAX)
    n = tl.fma(clamped, _LOG2_E, _ROUNDER) - _ROUNDER
    r = tl.fma(n, -_LN2_HIGH, clamped)
    r = tl.fma(n, -_LN2_LOW, r)
    q = tl.fma(r, _E6, _E5)
    q = tl.fma(q, r, _E4)
    q = tl.fma(q, r, _E3)
    q = tl.fma(q, r, _E2)
    y = 1.0 + tl.fma(q, r * r, r)
    whole = n.to(tl.int32)
    half = whole >> 1
    y = y * float_of((half + 127) << 23)
    y = y * float_of((whole - half + 127) << 23)
    y = tl.where(x > _EXP_MAX, float("inf"), y)
    y = tl.where(x < _EXP_MIN, 0.0, y)
    return tl.where(x == x, y, x)


@device
def _constant64(value: tl.constexpr) -> Block:
    """A float64 constant; a plain literal would pass through float32."""
    return tl.full((), value, tl.float64)


@device
def log64(x: Block) -> Block:
    """Natural logarithm of a positive normal float64."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1023
    mantissa = ((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    large = mantissa > _constant64(1.4142135623730951)
    mantissa = tl.where(large, mantissa * _constant64(0.5), mantissa)
    exponent = exponent + large.to(tl.int64)
    one = _constant64(1.0)
    s = (mantissa - one) / (mantissa + one)
    z = s * s
    p = tl.fma(z, _constant64(1.0 / 19.0), _constant64(1.0 / 17.0))
    p = tl.fma(p, z, _constant64(1.0 / 15.0))
    p = tl.fma(p, z, _constant64(1.0 / 13.0))
    p = tl.fma(p, z, _constant64(1.0 / 11.0))
    p = tl.fma(p, z, _constant64(1.0 / 9.0))
    p = tl.fma(p, z, _constant64(1.0 / 7.0))
    p = tl.fma(p, z, _constant64(1.0 / 5.0))
    p = tl.fma(p, z, _constant64(1.0 / 3.0))
    twice = _constant64(2.0) * s
    tail = tl.fma(p * z, twice, twice)
    return tl.fma(exponent.to(tl.float64), _constant64(0.6931471805599453), tail)


@device
def log(x: Block) -> Block:
    """Natural logarithm of a float32: -inf at zero, NaN below, inf at inf."""
    y = log64(x.to(tl.float64)).to(tl.float32)
    y = tl.where(x == float("inf"), x, y)
    y = tl.where(x < 0.0, float("nan"), y)
    y = tl.where(x == 0.0, float("-inf"), y)
    return tl.where(x == x, y, x)


@device
def sigmoid(x: Block) -> Block:
    """``1 / (1 + exp(-x))``."""
    denominator = 1.0 + exp(-x)
    return tl.div_rn(tl.full(denominator.shape, 1.0, tl.float32), denominator)


@device
def silu(x: Block) -> Block:
    """``x / (1 + exp(-x))``."""
    return tl.div_rn(x, 1.0 + exp(-x))


@device
def softplus(x: Block) -> Block:
    """``x`` above 20, else ``log1p(exp(x))``."""
    e = exp(x)
    wide = e.to(tl.float64)
    u = _constant64(1.0) + wide
    y = (log64(u) * (wide / (u - _constant64(1.0)))).to(tl.float32)
    y = tl.where(u == _constant64(1.0), e, y)
    return tl.where(x > 20.0, x, y)


@device
def rsqrt(x: Block) -> Block:
    """``1 / sqrt(x)``: two correctly rounded operations."""
    root = tl.sqrt_rn(x)
    return tl.div_rn(tl.full(root.shape, 1.0, tl.float32), root)


@device
def to_bf16(x: Block) -> Block:
    """Round to the nearest bfloat16, ties to even, and back; NaN stays NaN."""
    bits = bits_of(x)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(x == x, float_of(rounded), x)


@device
def rounded(x: Block, BF16: tl.constexpr) -> Block:
    """An activation of the profile."""
    return to_bf16(x) if BF16 else x


@device
def ordered(score: Block) -> Block:
    """An int32 that orders like the float; -0.0 becomes 0.0."""
    bits = bits_of(score + 0.0)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
