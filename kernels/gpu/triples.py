"""Numbers of three float32 for chips without float64: about 70 bits, of fused multiply-adds and plain ones.

A triple ``(a, b, c)`` stands for the exact sum of its parts; each part is at most half a unit in the last
place of the one before. Functions are exact but for those that name an error, relative to the result.
Nothing here survives a compiler that joins or reorders operations.
"""

from __future__ import annotations

import triton.language as tl

from deepinfer.kernels.gpu.elementary import bits_of, float_of
from deepinfer.kernels.gpu.launching import Block, device


@device
def two_sum(a: Block, b: Block) -> tuple[Block, Block]:
    """``a + b`` rounded, and what rounding left."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)


@device
def two_product(a: Block, b: Block) -> tuple[Block, Block]:
    """``a * b`` rounded, and what rounding left."""
    product = a * b
    return product, tl.fma(a, b, -product)


@device
def triple_of(a: Block, b: Block, c: Block) -> tuple[Block, Block, Block]:
    """The triple of three numbers, each well below the one before."""
    b, c = two_sum(b, c)
    a, b = two_sum(a, b)
    b, c = two_sum(b, c)
    return a, b, c


@device
def added(a0: Block, a1: Block, a2: Block, b0: Block, b1: Block, b2: Block) -> tuple[Block, Block, Block]:
    """The sum of two triples that do not cancel: error below ``2**-69``."""
    s0, e0 = two_sum(a0, b0)
    s1, e1 = two_sum(a1, b1)
    s1, e2 = two_sum(s1, e0)
    return triple_of(s0, s1, (a2 + b2) + (e1 + e2))


@device
def multiplied(
    a0: Block, a1: Block, a2: Block, b0: Block, b1: Block, b2: Block
) -> tuple[Block, Block, Block]:
    """The product of two triples: error below ``2**-67``."""
    p, e = two_product(a0, b0)
    q, f = two_product(a0, b1)
    r, g = two_product(a1, b0)
    s, h = two_sum(q, r)
    s, i = two_sum(s, e)
    rest = tl.fma(a0, b2, tl.fma(a1, b1, a2 * b0)) + ((f + g) + (h + i))
    return triple_of(p, s, rest)


@device
def divided(a0: Block, a1: Block, b0: Block, b1: Block, b2: Block) -> tuple[Block, Block, Block]:
    """The quotient of two numbers and a triple: error below ``2**-66``; a digit of 24 bits at a time."""
    first = tl.div_rn(a0, b0)
    left = tl.fma(-first, b0, a0)  # exact, as the rest of a rounded quotient is
    p, e = two_product(first, b1)
    s, f = two_sum(left, a1)
    s, g = two_sum(s, -p)
    s, low = two_sum(s, ((f + g) - e) - first * b2)
    second = tl.div_rn(s, b0)
    left = tl.fma(-second, b0, s) + (low - second * b1)
    return triple_of(first, second, tl.div_rn(left, b0))


@device
def nearest(a: Block, b: Block, c: Block) -> Block:
    """A triple rounded to float32, once: ties to even only where the third part is zero.

    An even second part is made odd towards a third that is not zero, so that its sum with the first shows on
    which side of a tie the number lies.
    """
    bits = bits_of(b)
    up = ((c > 0.0) & (b > 0.0)) | ((c < 0.0) & (b < 0.0))
    odd = bits + tl.where(up, 1, -1)
    return a + float_of(tl.where((c != 0.0) & ((bits & 1) == 0), odd, bits))
