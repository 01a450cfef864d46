"""Logarithms without float64, with the bits of ``elementary.log`` and ``elementary.softplus``, which use it.

``log m = 2 atanh s``, ``s = (m - 1) / (m + 1)``, in numbers of three float32 (``triples``): the terms up to
``s**13`` as triples, the rest in float32, an error of ``2**-63``. No float32 but the few listed here has a
logarithm closer than ``2**-57`` to the middle of two float32 without both ways rounding alike; where the
float64 one ends on the wrong side, so must this one. ``tests/kernels/test_ascend.py`` looks for such cases
among all float32.
"""

from __future__ import annotations

import triton.language as tl

from deepinfer.kernels.gpu import elementary
from deepinfer.kernels.gpu.elementary import bits_of, exp, float_of
from deepinfer.kernels.gpu.launching import Block, device
from deepinfer.kernels.gpu.triples import added, divided, multiplied, nearest, triple_of, two_sum

_SQRT2: tl.constexpr = tl.constexpr(1.4142135)
_SMALLEST_NORMAL: tl.constexpr = tl.constexpr(2.0**-126)
_TINY: tl.constexpr = tl.constexpr(2.0**-26)
"""Below it, ``log1p(e)`` rounds to ``e``."""


@device
def _next_term(
    p0: Block,
    p1: Block,
    p2: Block,
    z0: Block,
    z1: Block,
    z2: Block,
    c0: tl.constexpr,
    c1: tl.constexpr,
    c2: tl.constexpr,
) -> tuple[Block, Block, Block]:
    """``p * z + c``."""
    p0, p1, p2 = multiplied(p0, p1, p2, z0, z1, z2)
    zero = tl.zeros(p0.shape, tl.float32)
    return added(zero + c0, zero + c1, zero + c2, p0, p1, p2)


@device
def _log_of(a: Block, b: Block, power: Block) -> Block:
    """``log((a + b) * 2**power)``: ``a`` between the roots of 1/2 and 2, ``b`` far below, power int32."""
    above, rest = two_sum(a - 1.0, b)
    d0, d1 = two_sum(a, tl.full(a.shape, 1.0, tl.float32))
    d1, d2 = two_sum(d1, b)
    s0, s1, s2 = divided(above, rest, d0, d1, d2)
    z0, z1, z2 = multiplied(s0, s1, s2, s0, s1, s2)
    tail = tl.fma(z0, 0.04347826, 0.04761905)  # 1/23 and 1/21, then 1/19, 1/17 and 1/15
    tail = tl.fma(tail, z0, 0.05263158)
    tail = tl.fma(tail, z0, 0.05882353)
    tail = tl.fma(tail, z0, 0.06666667)
    zero = tl.zeros(a.shape, tl.float32)
    p0, p1, p2 = _next_term(
        tail, zero, zero, z0, z1, z2, 0.07692308, -2.865608e-09, 5.1241063e-17
    )  # 1/13 in three parts; 1/11, 1/9, 1/7, 1/5 and 1/3 follow
    p0, p1, p2 = _next_term(p0, p1, p2, z0, z1, z2, 0.09090909, -2.7093021e-09, 8.0743495e-17)
    p0, p1, p2 = _next_term(p0, p1, p2, z0, z1, z2, 0.11111111, -8.278423e-10, 6.1679057e-18)
    p0, p1, p2 = _next_term(p0, p1, p2, z0, z1, z2, 0.14285715, -6.386212e-09, 6.344132e-17)
    p0, p1, p2 = _next_term(p0, p1, p2, z0, z1, z2, 0.2, -2.9802323e-09, 4.440892e-17)
    p0, p1, p2 = _next_term(p0, p1, p2, z0, z1, z2, 0.33333334, -9.934108e-09, 2.9605948e-16)
    p0, p1, p2 = multiplied(p0, p1, p2, z0, z1, z2)
    s0, s1, s2 = s0 * 2.0, s1 * 2.0, s2 * 2.0
    p0, p1, p2 = multiplied(s0, s1, s2, p0, p1, p2)
    s0, s1, s2 = added(s0, s1, s2, p0, p1, p2)
    count = power.to(tl.float32)  # at most 8 bits, and 16 in each of the first three parts of log 2
    l0, l1 = two_sum(count * 0.69314575, count * 1.4286197e-06)
    l1, l2 = two_sum(l1, count * -1.29052324e-11)
    l0, l1, l2 = triple_of(l0, l1, l2 + count * -8.783184e-17)
    return nearest(*added(l0, l1, l2, s0, s1, s2))


@device
def _reduced(x: Block) -> tuple[Block, Block]:
    """Mantissa between the square roots of 1/2 and 2, and exponent int32, of a positive normal float32."""
    bits = bits_of(x)
    mantissa = float_of((bits & 0x7FFFFF) | 0x3F800000)
    large = mantissa > _SQRT2
    return tl.where(large, mantissa * 0.5, mantissa), (bits >> 23) - 127 + large.to(tl.int32)


@device
def _moved(y: Block, up: Block, down: Block) -> Block:
    """``y``, or a neighbour of it by its bit pattern."""
    return float_of(bits_of(y) + up.to(tl.int32) - down.to(tl.int32))


@device
def log(x: Block) -> Block:
    """Natural logarithm of a float32: -inf at zero, NaN below, inf at inf."""
    small = x < _SMALLEST_NORMAL
    mantissa, power = _reduced(tl.where(small, x * 8388608.0, x))
    y = _log_of(mantissa, tl.zeros(x.shape, tl.float32), power - 23 * small.to(tl.int32))
    bits = bits_of(x)
    up = (bits == 0x3C413D3A) | (bits == 0x41178FEB)
    y = _moved(y, up, (bits == 0x4C5D65A5) | (bits == 0x65D890D3) | (bits == 0x6F31A8EC))
    y = tl.where(x == float("inf"), x, y)
    y = tl.where(x < 0.0, float("nan"), y)
    y = tl.where(x == 0.0, float("-inf"), y)
    return tl.where(x == x, y, x)


@device
def log1p(e: Block) -> Block:
    """``log(1 + e)`` of a float32 from 0 to ``exp(20)``, as ``elementary.softplus`` computes it."""
    one = tl.full(e.shape, 1.0, tl.float32)
    above, rest = two_sum(one, e)
    mantissa, power = _reduced(above)
    y = _log_of(mantissa, rest * float_of((127 - power) << 23), power)
    bits = bits_of(e)
    y = _moved(y, bits == 0x41078FEB, (bits == 0x35400003) | (bits == 0x3710001B))
    return tl.where(e < _TINY, e, y)


@device
def softplus(x: Block) -> Block:
    """``x`` above 20, else ``log1p(exp(x))``."""
    return tl.where(x > 20.0, x, log1p(exp(x)))


@device
def log_by(x: Block, FP64: tl.constexpr) -> Block:
    """The logarithm, with float64 or without."""
    return elementary.log(x) if FP64 else log(x)


@device
def softplus_by(x: Block, FP64: tl.constexpr) -> Block:
    """Softplus, with float64 or without."""
    return elementary.softplus(x) if FP64 else softplus(x)
